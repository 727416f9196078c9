"""`python -m quatrain`."""

from quatrain.cli import main

if __name__ == "__main__":
    main()
