import { createPrivateKey, X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { TLSConfig } from '@temporalio/common/lib/internal-non-workflow/index.js';
import { RatchetError } from '../../core/errors.ts';

export interface TemporalSettings {
  readonly address: string;
  readonly namespace: string;
  /** null: without TLS, as on the loopback. */
  readonly tls: TLSConfig | null;
  readonly apiKey: string | null;
  /** Reads the files of a key and of certificates again; null when none is named, so that nothing can change. */
  readonly reread: (() => TemporalSettings) | null;
}

type Environment = Readonly<NodeJS.ProcessEnv>;

/**
 * Settings of our own server on this machine: loopback, no TLS, one namespace. Variables for a server elsewhere do not
 * apply to it.
 */
export function localTemporal(address: string): TemporalSettings {
  return { address, namespace: 'default', tls: null, apiKey: null, reread: null };
}

/**
 * Connection to a server that is not ours, from Temporal's own environment variables: TEMPORAL_NAMESPACE, TEMPORAL_TLS,
 * TEMPORAL_TLS_SERVER_CA_CERT_PATH (or _DATA), TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH (or
 * _DATA), TEMPORAL_TLS_SERVER_NAME, TEMPORAL_API_KEY; and TEMPORAL_API_KEY_FILE, which is ours. A certificate or an API
 * key implies TLS.
 */
export function remoteTemporal(address: string, env: Environment = process.env): TemporalSettings {
  const apiKey = readApiKey(env);
  return {
    address,
    namespace: env['TEMPORAL_NAMESPACE'] || 'default',
    tls: readTls(env, apiKey !== null),
    apiKey,
    reread: namesFile(env) ? () => remoteTemporal(address, env) : null,
  };
}

function namesFile(env: Environment): boolean {
  return Object.keys(env).some((name) => /^TEMPORAL_(?:API_KEY_FILE|TLS_.*_PATH)$/.test(name) && env[name]);
}

function readTls(env: Environment, hasApiKey: boolean): TLSConfig | null {
  const wanted = readFlag(env, 'TEMPORAL_TLS');
  if (readFlag(env, 'TEMPORAL_TLS_DISABLE_HOST_VERIFICATION') === true) {
    throw refused(
      'TEMPORAL_TLS_DISABLE_HOST_VERIFICATION is set, which cannot be honoured: the server is always verified. ' +
        'Unset it; name the certificate authority in TEMPORAL_TLS_SERVER_CA_CERT_PATH, and another host name in TEMPORAL_TLS_SERVER_NAME',
    );
  }
  const authority = readMaterial(env, 'TEMPORAL_TLS_SERVER_CA_CERT');
  const certificate = readMaterial(env, 'TEMPORAL_TLS_CLIENT_CERT');
  const key = readMaterial(env, 'TEMPORAL_TLS_CLIENT_KEY');
  const serverName = env['TEMPORAL_TLS_SERVER_NAME'];
  const isNamed = [authority, certificate, key].some((one) => one !== null) || Boolean(serverName);
  if (wanted === false) {
    if (!isNamed && !hasApiKey) return null;
    throw refused(
      `TEMPORAL_TLS is ${env['TEMPORAL_TLS']}, but ${isNamed ? 'TEMPORAL_TLS_…' : 'TEMPORAL_API_KEY'} is set too, which needs TLS. Unset one of them`,
    );
  }
  if (wanted === null && !isNamed && !hasApiKey) return null;
  if (authority) requireCertificate(authority);
  return {
    ...(serverName ? { serverNameOverride: serverName } : {}),
    ...(authority ? { serverRootCACertificate: authority.bytes } : {}),
    ...(certificate || key ? { clientCertPair: readPair(certificate, key) } : {}),
  };
}

function readPair(certificate: Material | null, key: Material | null): { crt: Buffer; key: Buffer } {
  if (!certificate || !key) {
    const [given, missing] = certificate ? (['CERT', 'KEY'] as const) : (['KEY', 'CERT'] as const);
    throw refused(
      `TEMPORAL_TLS_CLIENT_${given}_… is set, but TEMPORAL_TLS_CLIENT_${missing}_PATH is not; a client certificate and its key go together`,
    );
  }
  const parsed = requireCertificate(certificate);
  const privateKey = parsedOr(
    () => createPrivateKey(key.bytes),
    `${key.from}: expected a private key in PEM, without a passphrase`,
  );
  if (!parsed.checkPrivateKey(privateKey)) {
    throw refused(
      `${key.from} is not the key of the certificate in ${certificate.from}; give the two that belong together`,
    );
  }
  return { crt: certificate.bytes, key: key.bytes };
}

function requireCertificate({ bytes, from }: Material): X509Certificate {
  const parsed = parsedOr(() => new X509Certificate(bytes), `${from}: expected a certificate in PEM`);
  if (Date.parse(parsed.validTo) < Date.now()) {
    throw refused(
      `${from}: this certificate (${parsed.subject.replaceAll('\n', ', ')}) expired on ${parsed.validTo}; renew it`,
    );
  }
  return parsed;
}

function readApiKey(env: Environment): string | null {
  const [given, file] = [env['TEMPORAL_API_KEY'], env['TEMPORAL_API_KEY_FILE']];
  if (given && file) throw refused('TEMPORAL_API_KEY and TEMPORAL_API_KEY_FILE are both set; unset one of them');
  const key = file ? readNamedFile('TEMPORAL_API_KEY_FILE', file).toString('utf8').trim() : (given ?? '').trim();
  if (file && key === '') throw refused(`TEMPORAL_API_KEY_FILE: ${file} is empty; expected an API key`);
  // An invalid header value would be refused later, with the key in the message.
  if (!/^[\x21-\x7e]*$/.test(key)) {
    throw refused(
      `${file ? `TEMPORAL_API_KEY_FILE: ${file}` : 'TEMPORAL_API_KEY'}: expected one word of printable ASCII`,
    );
  }
  return key === '' ? null : key;
}

interface Material {
  readonly bytes: Buffer;
  /** Source for messages: the variable, and the file it names. */
  readonly from: string;
}

/** Contents of the file in `NAME_PATH`, or of `NAME_DATA`. */
function readMaterial(env: Environment, name: string): Material | null {
  const [file, data] = [env[`${name}_PATH`], env[`${name}_DATA`]];
  if (file && data) throw refused(`${name}_PATH and ${name}_DATA are both set; unset one of them`);
  if (file) return { bytes: readNamedFile(`${name}_PATH`, file), from: `${name}_PATH (${file})` };
  return data ? { bytes: Buffer.from(data), from: `${name}_DATA` } : null;
}

/** The contents of a file that an environment variable names. */
export function readNamedFile(variable: string, file: string): Buffer {
  try {
    return readFileSync(file);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    const why = code === 'ENOENT' ? 'there is no such file' : `it cannot be read (${code})`;
    throw refused(`${variable}: expected a file, but ${why}: ${file}`, cause);
  }
}

function readFlag(env: Environment, name: string): boolean | null {
  const text = (env[name] ?? '').trim().toLowerCase();
  if (text === '') return null;
  if (text === 'true' || text === '1') return true;
  if (text === 'false' || text === '0') return false;
  throw refused(`${name}: expected true or false, got ${JSON.stringify(env[name])}`);
}

function parsedOr<T>(parse: () => T, expected: string): T {
  try {
    return parse();
  } catch (cause) {
    throw refused(expected, cause);
  }
}

function refused(message: string, cause?: unknown): RatchetError {
  return new RatchetError('ConfigInvalid', `${message}.`, cause === undefined ? {} : { cause });
}
