//! What a sample becomes, and what is refused.
