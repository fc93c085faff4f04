"""One file for each change of the schema, in order. What was released is never edited."""
