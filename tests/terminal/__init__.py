"""The command line on a real terminal: what people see, and what their keys do."""
