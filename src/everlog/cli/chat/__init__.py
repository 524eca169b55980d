"""`everlog chat`: chat with an agent on a terminal, through the daemon or in this process."""
