//! Drives the cache unchanged over device models in virtual time.
