"""Files below folders that other users can write to. Standard library only, because agents use it too."""
