//! What a client, a user or a host cannot do to the helper.
