//! Reading and writing SES headers. The PDS header in front determines the kind of header.
//!
//! Reserved bits are written as zero and ignored when read; unknown opcodes and return codes are kept.

use super::{
    List, MediumRequest, Opcode, Placement, RequestFlags, Response, ResponseWithData, ReturnCode, Ses,
    SmallRequest, SmallResponseWithData, StandardRequest,
};
use crate::wire::bytes::{be16, be24, be32, be64, head, put, put24, room};
use crate::wire::error::{HeaderName, WireError, fits};
use crate::wire::pds::NextHeader;

const LEN14: u16 = 0x3fff;
const LOW12: u16 = 0x0fff;
const LOW6: u8 = 0x3f;

/// Bytes known to hold a whole SES header of a known kind.
#[derive(Clone, Copy, Debug)]
pub struct SesView<'a> {
    next: NextHeader,
    header: &'a [u8],
    rest: &'a [u8],
}

impl<'a> SesView<'a> {
    /// Checks the length of the header that `next` announces.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn new_checked(next: NextHeader, bytes: &'a [u8]) -> Result<SesView<'a>, WireError> {
        let needed = next.header_len();
        match bytes.split_at_checked(needed) {
            Some((header, rest)) => Ok(SesView { next, header, rest }),
            None => Err(WireError::Truncated { header: name(next), needed, found: bytes.len() }),
        }
    }

    /// The kind of header.
    #[inline]
    pub fn next_header(&self) -> NextHeader {
        self.next
    }

    /// The bytes of the header.
    #[inline]
    pub fn header(&self) -> &'a [u8] {
        self.header
    }

    /// The bytes after the header: an extension, if the opcode has one, then the payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.rest
    }
}

/// The name of the header that `next` announces.
const fn name(next: NextHeader) -> HeaderName {
    match next {
        NextHeader::None | NextHeader::RequestStandard => HeaderName::SesStandard,
        NextHeader::RequestSmall => HeaderName::SesSmall,
        NextHeader::RequestMedium => HeaderName::SesMedium,
        NextHeader::Response => HeaderName::SesResponse,
        NextHeader::ResponseData => HeaderName::SesResponseData,
        NextHeader::ResponseDataSmall => HeaderName::SesResponseDataSmall,
    }
}

/// The first 12 bytes, which all requests share. `id_or_len` is the message id of a standard request and the length of
/// the others.
struct RequestHead {
    opcode: Opcode,
    flags: RequestFlags,
    id_or_len: u16,
    ri_generation: u8,
    job_id: u32,
    pid_on_fep: u16,
    resource_index: u16,
}

impl RequestHead {
    #[inline]
    fn read<const N: usize>(b: &[u8; N]) -> RequestHead {
        RequestHead {
            opcode: Opcode(b[0] & LOW6),
            flags: RequestFlags::from_bits(b[1]),
            id_or_len: be16(b, 2),
            ri_generation: b[4],
            job_id: be24(b, 5),
            pid_on_fep: be16(b, 8) & LOW12,
            resource_index: be16(b, 10) & LOW12,
        }
    }

    #[inline(always)]
    fn write<const N: usize>(&self, b: &mut [u8; N], header: HeaderName) -> Result<(), WireError> {
        let ids = self.pid_on_fep | self.resource_index;
        let excess = self.opcode.0 >> 6 | (ids >> 12) as u8;
        // One test for all fields. Which one is too wide matters only if one is.
        if excess != 0 || self.job_id >> 24 != 0 {
            self.check(header)?;
        }
        let [opcode, flags] = [self.opcode.0, self.flags.bits()].map(u64::from);
        let first = opcode << 56 | flags << 48 | u64::from(self.id_or_len) << 32;
        let first = first | u64::from(self.ri_generation) << 24 | u64::from(self.job_id);
        put(b, 0, first.to_be_bytes());
        put(b, 8, (u32::from(self.pid_on_fep) << 16 | u32::from(self.resource_index)).to_be_bytes());
        Ok(())
    }

    /// Checks that each value fits in its field.
    #[cold]
    fn check(&self, header: HeaderName) -> Result<(), WireError> {
        fits(header, 0, "opcode", u64::from(self.opcode.0), 6)?;
        fits(header, 5, "job_id", u64::from(self.job_id), 24)?;
        fits(header, 8, "pid_on_fep", u64::from(self.pid_on_fep), 12)?;
        fits(header, 10, "resource_index", u64::from(self.resource_index), 12)
    }
}

impl StandardRequest {
    /// Bytes of the header.
    pub const LEN: usize = 44;

    /// Reads the header that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<StandardRequest, WireError> {
        Ok(StandardRequest::read(head(bytes, HeaderName::SesStandard)?))
    }

    /// Reads a complete header.
    #[inline]
    pub(in crate::wire) fn read(b: &[u8; Self::LEN]) -> StandardRequest {
        let h = RequestHead::read(b);
        let placement = if h.flags.has(RequestFlags::START_OF_MESSAGE) {
            Placement::Start { header_data: be64(b, 32) }
        } else {
            Placement::Continue { payload_len: be16(b, 34) & LEN14, msg_offset: be32(b, 36) }
        };
        StandardRequest {
            opcode: h.opcode,
            flags: h.flags,
            msg_id: h.id_or_len,
            ri_generation: h.ri_generation,
            job_id: h.job_id,
            pid_on_fep: h.pid_on_fep,
            resource_index: h.resource_index,
            buffer_offset: be64(b, 12),
            initiator: be32(b, 20),
            match_bits: be64(b, 24),
            placement,
            request_length: be32(b, 40),
        }
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide; SOM that contradicts the placement.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        self.write(room(buf, HeaderName::SesStandard)?)?;
        Ok(Self::LEN)
    }

    /// Writes the header.
    ///
    /// # Errors
    /// A value too wide; SOM that contradicts the placement.
    #[inline(always)]
    pub(in crate::wire) fn write(&self, b: &mut [u8; Self::LEN]) -> Result<(), WireError> {
        const HEADER: HeaderName = HeaderName::SesStandard;
        let place = match (self.placement, self.flags.has(RequestFlags::START_OF_MESSAGE)) {
            (Placement::Start { header_data }, true) => header_data,
            (Placement::Continue { payload_len, msg_offset }, false) => {
                fits(HEADER, 34, "payload_len", u64::from(payload_len), 14)?;
                u64::from(payload_len) << 32 | u64::from(msg_offset)
            }
            _ => {
                let expected = "SOM exactly when the placement is that of a first packet";
                return Err(WireError::Inconsistent { header: HEADER, offset: 1, expected });
            }
        };
        let h = RequestHead {
            opcode: self.opcode,
            flags: self.flags,
            id_or_len: self.msg_id,
            ri_generation: self.ri_generation,
            job_id: self.job_id,
            pid_on_fep: self.pid_on_fep,
            resource_index: self.resource_index,
        };
        h.write(b, HEADER)?;
        put(b, 12, self.buffer_offset.to_be_bytes());
        put(b, 20, self.initiator.to_be_bytes());
        put(b, 24, self.match_bits.to_be_bytes());
        put(b, 32, place.to_be_bytes());
        put(b, 40, self.request_length.to_be_bytes());
        Ok(())
    }
}

impl SmallRequest {
    /// Bytes of the header.
    pub const LEN: usize = 20;

    /// Reads the header that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<SmallRequest, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesSmall)?;
        let h = RequestHead::read(b);
        Ok(SmallRequest {
            opcode: h.opcode,
            flags: h.flags,
            length: h.id_or_len & LEN14,
            ri_generation: h.ri_generation,
            job_id: h.job_id,
            pid_on_fep: h.pid_on_fep,
            resource_index: h.resource_index,
            buffer_offset: be64(b, 12),
        })
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        fits(HeaderName::SesSmall, 2, "length", u64::from(self.length), 14)?;
        let b: &mut [u8; Self::LEN] = room(buf, HeaderName::SesSmall)?;
        let h = RequestHead {
            opcode: self.opcode,
            flags: self.flags,
            id_or_len: self.length,
            ri_generation: self.ri_generation,
            job_id: self.job_id,
            pid_on_fep: self.pid_on_fep,
            resource_index: self.resource_index,
        };
        h.write(b, HeaderName::SesSmall)?;
        put(b, 12, self.buffer_offset.to_be_bytes());
        Ok(Self::LEN)
    }
}

impl MediumRequest {
    /// Bytes of the header.
    pub const LEN: usize = 32;

    /// Reads the header that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<MediumRequest, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesMedium)?;
        let h = RequestHead::read(b);
        Ok(MediumRequest {
            opcode: h.opcode,
            flags: h.flags,
            length: h.id_or_len & LEN14,
            ri_generation: h.ri_generation,
            job_id: h.job_id,
            pid_on_fep: h.pid_on_fep,
            resource_index: h.resource_index,
            header_data_or_offset: be64(b, 12),
            initiator: be32(b, 20),
            match_bits: be64(b, 24),
        })
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        fits(HeaderName::SesMedium, 2, "length", u64::from(self.length), 14)?;
        let b: &mut [u8; Self::LEN] = room(buf, HeaderName::SesMedium)?;
        let h = RequestHead {
            opcode: self.opcode,
            flags: self.flags,
            id_or_len: self.length,
            ri_generation: self.ri_generation,
            job_id: self.job_id,
            pid_on_fep: self.pid_on_fep,
            resource_index: self.resource_index,
        };
        h.write(b, HeaderName::SesMedium)?;
        put(b, 12, self.header_data_or_offset.to_be_bytes());
        put(b, 20, self.initiator.to_be_bytes());
        put(b, 24, self.match_bits.to_be_bytes());
        Ok(Self::LEN)
    }
}

/// The first two bytes, which all responses share.
struct ResponseHead {
    list: List,
    opcode: u8,
    version: u8,
    return_code: ReturnCode,
}

impl ResponseHead {
    #[inline]
    fn read<const N: usize>(b: &[u8; N]) -> ResponseHead {
        let list = match b[0] >> 6 {
            0 => List::Expected,
            1 => List::Overflow,
            other => List::Reserved(other),
        };
        ResponseHead { list, opcode: b[0] & LOW6, version: b[1] >> 6, return_code: ReturnCode(b[1] & LOW6) }
    }

    #[inline]
    fn write<const N: usize>(&self, b: &mut [u8; N], header: HeaderName) -> Result<(), WireError> {
        let list = match self.list {
            List::Expected => 0,
            List::Overflow => 1,
            List::Reserved(value @ 2..=3) => value,
            List::Reserved(_) => {
                let expected = "2 or 3 in a reserved list";
                return Err(WireError::Inconsistent { header, offset: 0, expected });
            }
        };
        fits(header, 0, "opcode", u64::from(self.opcode), 6)?;
        fits(header, 1, "version", u64::from(self.version), 2)?;
        fits(header, 1, "return_code", u64::from(self.return_code.0), 6)?;
        b[0] = list << 6 | self.opcode;
        b[1] = self.version << 6 | self.return_code.0;
        Ok(())
    }
}

impl Response {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// Reads the header that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Response, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesResponse)?;
        let h = ResponseHead::read(b);
        Ok(Response {
            list: h.list,
            opcode: h.opcode,
            version: h.version,
            return_code: h.return_code,
            msg_id: be16(b, 2),
            ri_generation: b[4],
            job_id: be24(b, 5),
            modified_length: be32(b, 8),
        })
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        const HEADER: HeaderName = HeaderName::SesResponse;
        fits(HEADER, 5, "job_id", u64::from(self.job_id), 24)?;
        let b: &mut [u8; Self::LEN] = room(buf, HEADER)?;
        let (list, opcode) = (self.list, self.opcode);
        ResponseHead { list, opcode, version: self.version, return_code: self.return_code }
            .write(b, HEADER)?;
        put(b, 2, self.msg_id.to_be_bytes());
        b[4] = self.ri_generation;
        put24(b, 5, self.job_id);
        put(b, 8, self.modified_length.to_be_bytes());
        Ok(Self::LEN)
    }
}

impl ResponseWithData {
    /// Bytes of the header.
    pub const LEN: usize = 20;

    /// Reads the header that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<ResponseWithData, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesResponseData)?;
        let h = ResponseHead::read(b);
        Ok(ResponseWithData {
            list: h.list,
            opcode: h.opcode,
            version: h.version,
            return_code: h.return_code,
            msg_id: be16(b, 2),
            job_id: be24(b, 5),
            read_request_msg_id: be16(b, 8),
            payload_len: be16(b, 10) & LEN14,
            modified_length: be32(b, 12),
            msg_offset: be32(b, 16),
        })
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        const HEADER: HeaderName = HeaderName::SesResponseData;
        fits(HEADER, 5, "job_id", u64::from(self.job_id), 24)?;
        fits(HEADER, 10, "payload_len", u64::from(self.payload_len), 14)?;
        let b: &mut [u8; Self::LEN] = room(buf, HEADER)?;
        let (list, opcode) = (self.list, self.opcode);
        ResponseHead { list, opcode, version: self.version, return_code: self.return_code }
            .write(b, HEADER)?;
        put(b, 2, self.msg_id.to_be_bytes());
        b[4] = 0;
        put24(b, 5, self.job_id);
        put(b, 8, self.read_request_msg_id.to_be_bytes());
        put(b, 10, self.payload_len.to_be_bytes());
        put(b, 12, self.modified_length.to_be_bytes());
        put(b, 16, self.msg_offset.to_be_bytes());
        Ok(Self::LEN)
    }
}

impl SmallResponseWithData {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// Reads the header that starts `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    pub fn parse(bytes: &[u8]) -> Result<SmallResponseWithData, WireError> {
        let b: &[u8; Self::LEN] = head(bytes, HeaderName::SesResponseDataSmall)?;
        let h = ResponseHead::read(b);
        Ok(SmallResponseWithData {
            list: h.list,
            opcode: h.opcode,
            version: h.version,
            return_code: h.return_code,
            payload_len: be16(b, 2) & LEN14,
            job_id: be24(b, 5),
            original_request_psn: be32(b, 8),
        })
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        const HEADER: HeaderName = HeaderName::SesResponseDataSmall;
        fits(HEADER, 2, "payload_len", u64::from(self.payload_len), 14)?;
        fits(HEADER, 5, "job_id", u64::from(self.job_id), 24)?;
        let b: &mut [u8; Self::LEN] = room(buf, HEADER)?;
        let (list, opcode) = (self.list, self.opcode);
        ResponseHead { list, opcode, version: self.version, return_code: self.return_code }
            .write(b, HEADER)?;
        put(b, 2, self.payload_len.to_be_bytes());
        b[4] = 0;
        put24(b, 5, self.job_id);
        put(b, 8, self.original_request_psn.to_be_bytes());
        Ok(Self::LEN)
    }
}

impl Ses {
    /// Reads the header that the view holds.
    ///
    /// # Errors
    /// None: the view has checked the header.
    #[inline]
    pub fn parse(view: &SesView<'_>) -> Result<Ses, WireError> {
        let b = view.header();
        Ok(match view.next_header() {
            NextHeader::None => Ses::None,
            NextHeader::RequestStandard => Ses::Standard(StandardRequest::parse(b)?),
            NextHeader::Response => Ses::Response(Response::parse(b)?),
            NextHeader::RequestSmall => Ses::Small(SmallRequest::parse(b)?),
            NextHeader::RequestMedium => Ses::Medium(MediumRequest::parse(b)?),
            NextHeader::ResponseData => Ses::ResponseWithData(ResponseWithData::parse(b)?),
            NextHeader::ResponseDataSmall => Ses::SmallResponseWithData(SmallResponseWithData::parse(b)?),
        })
    }

    /// Reads the header of kind `next` at the start of `bytes`; also returns the bytes after it.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn decode(next: NextHeader, bytes: &[u8]) -> Result<(Ses, &[u8]), WireError> {
        let view = SesView::new_checked(next, bytes)?;
        Ok((Ses::parse(&view)?, view.payload()))
    }

    /// The next-header value that announces this header.
    #[inline]
    pub const fn next_header(&self) -> NextHeader {
        match self {
            Ses::None => NextHeader::None,
            Ses::Standard(_) => NextHeader::RequestStandard,
            Ses::Small(_) => NextHeader::RequestSmall,
            Ses::Medium(_) => NextHeader::RequestMedium,
            Ses::Response(_) => NextHeader::Response,
            Ses::ResponseWithData(_) => NextHeader::ResponseData,
            Ses::SmallResponseWithData(_) => NextHeader::ResponseDataSmall,
        }
    }

    /// Bytes that [`Ses::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        self.next_header().header_len()
    }

    /// Writes the header; returns its length.
    ///
    /// # Errors
    /// No room; a value too wide; a contradiction.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        match self {
            Ses::None => Ok(0),
            Ses::Standard(h) => h.emit(buf),
            Ses::Response(h) => h.emit(buf),
            Ses::Small(h) => h.emit(buf),
            Ses::Medium(h) => h.emit(buf),
            Ses::ResponseWithData(h) => h.emit(buf),
            Ses::SmallResponseWithData(h) => h.emit(buf),
        }
    }
}
