"""One file for each change of the schema, in order. A released migration is never edited."""
