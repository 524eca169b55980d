"""`everlog chat`: a conversation on a terminal, through the daemon or in this process."""
