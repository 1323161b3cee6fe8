//! Fleets beside the rules of their architectures.
