//! What the app knows of the API that other programs ask: whether a server serves it, which keys
//! it takes, and what was asked last. The server itself is the shell's (`cairn_server`).
//!
//! ```text
//! setting api_is_on ─► App::api_wanted ─► the shell's server
//!                   ─► App::api_started, App::api_stopped ─► Event::ApiServer
//! key of a request  ─► App::api_client ─► ApiClient: its name, its owner in the prompt cache
//! request that ends ─► App::add_api_request ─► Event::ApiRequest
//!
//! state     all that is known: server (is it wanted, is it there), clients, requests
//! switch    follows the settings that switch the server on and off
//! keys      makes, lists and revokes keys
//! serving   what the shell's server asks the app and tells it
//! commands  what an interface asks for
//! ```

mod clients;
pub(crate) mod commands;
mod keys;
mod requests;
mod server;
mod serving;
pub(crate) mod state;
pub(crate) mod switch;

pub use clients::ApiClient;
pub use requests::EndedRequest;
