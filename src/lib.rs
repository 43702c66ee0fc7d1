//! cloudmap-mcs
