"""The command line: its subcommands, as a person or a shell calls them."""
