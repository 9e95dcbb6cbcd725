//! libfolio as C programs link it: the calls of the crate folio-c, in one library.

use folio_c as _;
