"""Files below folders that somebody else can write to. Of the standard library alone: agents use it, too."""
