"""The command line: parse, call the library, print. It holds no logic of its own."""
