"""Records and their lines, torn tails, parts, the fold. Opens no file, knows no clock."""
