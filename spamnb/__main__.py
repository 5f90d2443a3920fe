"""`python -m spamnb`: the command line."""

from spamnb.cli.main import run

if __name__ == "__main__":
    run()
