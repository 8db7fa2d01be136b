//! What other users and hostile profiles can get out of the page's server.
