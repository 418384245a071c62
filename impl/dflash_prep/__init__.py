"""dflash_prep: a reference implementation of DFlash decode preparation, every published change a switch."""
