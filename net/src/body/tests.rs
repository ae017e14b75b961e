//! Bodies against the literal texts of stock brokers, name servers and clients.
