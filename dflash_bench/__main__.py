"""``python -m dflash_bench``."""

from dflash_bench.cli import main

if __name__ == "__main__":
    main()
