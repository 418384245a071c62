"""What a capture on this machine can and cannot see, and the command that mends each problem.

Facts are gathered once; each check is a pure function of them. The self-tests then really capture ten ranges with every
available recorder and read them back.
"""
