"""What happens when objects are dropped, the interpreter exits, or the process forks."""
