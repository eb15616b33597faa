import { once } from 'node:events';
import { connect as connectPlain, isIP, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { connect as connectTls, type ConnectionOptions as TlsOptions } from 'node:tls';
import type { TLSConfig } from '@temporalio/common/lib/internal-non-workflow/index.js';
import { RatchetError } from '../../core/errors.ts';
import type { TemporalSettings } from './temporal-settings.ts';
import { innermostMessage } from './innermost-message.ts';

/** The options of a connection, the same for the SDK's client and its worker. */
export function connectionOptions({ address, tls, apiKey }: TemporalSettings): {
  address: string;
  tls: TLSConfig | false;
  apiKey?: string;
} {
  return { address, tls: tls ?? false, ...(apiKey === null ? {} : { apiKey }) };
}

/**
 * Why a server was not reached, and advice. The SDK's client only reports a timeout, so this repeats the way without
 * Temporal: a connection, then a handshake.
 */
export async function notConnected(settings: TemporalSettings, cause: unknown): Promise<RatchetError> {
  const why = (await whyUnreachable(settings)) ?? (await (settings.tls ? whyNoTls : whyNotPlain)(settings));
  const said = why ?? `The Temporal server at ${settings.address} refused: ${innermostMessage(cause)}`;
  return new RatchetError('ServerUnavailable', said.endsWith('?') ? said : `${said}.`, { cause });
}

/** How long each part of the diagnosis may take. */
const answerTimeoutMs = 3_000;
/** In TLS 1.3 the server rejects a client's certificate only after the handshake. */
const alertWaitMs = 500;

async function whyUnreachable({ address }: TemporalSettings): Promise<string | null> {
  const failed = await attempt(connectPlain(endpoint(address)), 'connect');
  return (
    failed && `No Temporal server answers at ${address} (${failed}). Is it running, and is TEMPORAL_ADDRESS right?`
  );
}

/** Whether a server that was contacted without TLS speaks TLS; its certificate does not matter, and nothing is sent. */
async function whyNotPlain({ address }: TemporalSettings): Promise<string | null> {
  const tls = connectTls({ ...endpoint(address), rejectUnauthorized: false, ALPNProtocols: ['h2'] });
  const failed = await attempt(tls, 'secureConnect');
  if (failed !== null && !/CERTIFICATE/.test(failed)) return null;
  return `The server at ${address} speaks TLS. Set TEMPORAL_TLS=true, and TEMPORAL_TLS_SERVER_CA_CERT_PATH if its certificate authority is your own`;
}

/** TLS over a socket to the server, which is verified. Rejects with the socket's error. */
export async function overTls(settings: TemporalSettings, socket: Socket): Promise<Socket> {
  const secure = connectTls({ ...tlsOptions(settings), socket });
  // Between `once` and the next user of the socket an error without a listener would end the process.
  secure.on('error', () => undefined);
  await once(secure, 'secureConnect');
  return secure;
}

function tlsOptions({ address, tls }: TemporalSettings): TlsOptions {
  const { host, port } = endpoint(address);
  const name = tls?.serverNameOverride ?? host;
  return {
    host,
    port,
    // An IP address is no server name (RFC 6066); the certificate is checked against it all the same.
    ...(isIP(name) ? {} : { servername: name }),
    ...(tls?.serverRootCACertificate ? { ca: Buffer.from(tls.serverRootCACertificate) } : {}),
    ...(tls?.clientCertPair
      ? { cert: Buffer.from(tls.clientCertPair.crt), key: Buffer.from(tls.clientCertPair.key) }
      : {}),
    ALPNProtocols: ['h2'],
  };
}

async function whyNoTls(settings: TemporalSettings): Promise<string | null> {
  const { address, tls } = settings;
  const failed = await attempt(connectTls(tlsOptions(settings)), 'secureConnect');
  return failed && `${adviceOn(failed, address, tls)} (${failed})`;
}

function adviceOn(failed: string, address: string, tls: TLSConfig | null): string {
  if (/WRONG_VERSION_NUMBER|PACKET_LENGTH/.test(failed)) {
    return `The server at ${address} does not speak TLS. Unset TEMPORAL_TLS, TEMPORAL_TLS_… and TEMPORAL_API_KEY for a plain one`;
  }
  if (/ALTNAME/.test(failed)) {
    return `The certificate of ${address} is for another name. If it is the right server, put that name into TEMPORAL_TLS_SERVER_NAME`;
  }
  if (/CERT_HAS_EXPIRED/.test(failed)) return `The certificate of ${address} has expired`;
  if (/SELF_SIGNED|UNABLE_TO|CERT_SIGNATURE|CERT_UNTRUSTED/.test(failed)) {
    const whom = tls?.serverRootCACertificate
      ? 'the authority in TEMPORAL_TLS_SERVER_CA_CERT_PATH'
      : 'an authority this system knows';
    return `The certificate of ${address} is not signed by ${whom}. Put the authority's own into TEMPORAL_TLS_SERVER_CA_CERT_PATH`;
  }
  return tls?.clientCertPair
    ? `The server at ${address} does not accept the client certificate in TEMPORAL_TLS_CLIENT_CERT_PATH`
    : `The server at ${address} ended the handshake; it may want a client certificate: TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH`;
}

/** Null when the socket got as far as `event` and was not sent away, else the code of its error. */
async function attempt(socket: Socket, event: 'connect' | 'secureConnect'): Promise<string | null> {
  let failed: string | null = null;
  socket.on('error', (error: NodeJS.ErrnoException) => (failed ??= error.code ?? error.message));
  socket.setTimeout(answerTimeoutMs, () =>
    socket.destroy(Object.assign(new Error('no answer'), { code: 'no answer' })),
  );
  try {
    await Promise.race([once(socket, event), once(socket, 'close')]);
    if (event === 'secureConnect' && failed === null) {
      socket.once('close', () => (failed ??= 'ECONNRESET'));
      socket.resume();
      await Promise.race([once(socket, 'close'), delay(alertWaitMs)]);
    }
  } catch {
    // `failed` has the reason.
  }
  const result = failed;
  socket.destroy();
  return result;
}

/** `host:port`, `[::1]:port`; the port defaults to Temporal's. */
function endpoint(address: string): { host: string; port: number } {
  const [, host = address, port = '7233'] = /^(.*?)(?::(\d+))?$/.exec(address) ?? [];
  return { host: host.replace(/^\[(.*)\]$/, '$1'), port: Number(port) };
}
