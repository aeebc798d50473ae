"""`python -m framekeeper`."""

from framekeeper.cli import main

if __name__ == "__main__":
    main()
