"""`python -m sumwire` is the `sumwire` command."""

from sumwire.cli import main

if __name__ == "__main__":
    main(prog_name="sumwire")
