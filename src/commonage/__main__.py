"""`python -m commonage` is `commonage`."""

from commonage.cli import main

main()
