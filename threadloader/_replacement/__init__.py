"""Threads in place of torch's DataLoader in a running program: which loaders, what they took.

torch's class stays the same object, and its loaders stay what they are; the method that begins a
pass is exchanged.  So it does not matter who has imported the class before, has a subclass of it,
compares types, or copies and pickles a loader.  When a loader is iterated over, a `ThreadLoader` of
the same dataset and samplers loads for it, unless it asks for processes.
"""
