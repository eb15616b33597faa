import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { plainUrl } from '../host/plain-url.ts';
import { RatchetError } from '../core/errors.ts';
import { grants } from '../host/grants.ts';
import { lineOfStoreFolder } from '../host/trusted-files.ts';

/** Place of all runs of a store: a folder, or a prefix of a bucket. */
type StoreLocation = { readonly kind: 'file'; readonly folder: string } | ({ readonly kind: 's3' } & S3Location);

/** A prefix of a bucket and its server. Credentials are not included: they come from the default AWS chain. */
export interface S3Location {
  readonly bucket: string;
  /** Empty, or ends with a slash. */
  readonly prefix: string;
  /** null = AWS, or the value of AWS_ENDPOINT_URL_S3. */
  readonly endpoint: string | null;
  /** null = from the AWS chain (AWS_REGION, the profile); us-east-1 for an endpoint without a region. */
  readonly region: string | null;
  /** Uses `endpoint/bucket/key` in place of `bucket.endpoint/key`. */
  readonly pathStyle: boolean;
  readonly sse: 'AES256' | 'aws:kms' | null;
  readonly kmsKeyId: string | null;
}

const s3Options = ['endpoint', 'region', 'path_style', 'sse', 'kms_key_id'];

/**
 * An absolute store URI: `file:outputs` and bare paths are relative to the project's folder; an S3 prefix ends with a
 * slash.
 */
export function resolveStoreUri(uri: string, projectFolder: string): string {
  if (uri.startsWith('file:///')) return uri.endsWith('/') ? uri : `${uri}/`;
  const scheme = /^([a-z][a-z0-9+.-]*):/.exec(uri)?.[1];
  if (scheme === 's3') return formatS3Uri(parseS3Uri(uri));
  if (scheme && scheme !== 'file') {
    throw new RatchetError(
      'ConfigInvalid',
      `store.uri: expected file:FOLDER or s3://BUCKET/PREFIX/, got ${JSON.stringify(withoutUser(uri))}.`,
    );
  }
  return pathToFileURL(path.resolve(projectFolder, uri.replace(/^file:/, '')) + path.sep).href;
}

export function parseStoreUri(uri: string): StoreLocation {
  if (uri.startsWith('s3:')) return { kind: 's3', ...parseS3Uri(uri) };
  return { kind: 'file', folder: fileURLToPath(uri) };
}

/**
 * An absolute URI for people: a folder's path, or the URI without options that only the client needs, and without user
 * or password.
 */
export function showStoreUri(uri: string): string {
  return uri.startsWith('file:') ? fileURLToPath(uri) : withoutUser(uri).split('?', 1)[0]!;
}

/** The grant for a store with this user's credentials: the bucket and its server. */
export function lineOfStore({ bucket, endpoint }: Pick<S3Location, 'bucket' | 'endpoint'>): string {
  return `${grants.store}s3://${bucket} ${endpoint === null ? 'AWS' : new URL(endpoint).origin}`;
}

/** The grants for a store, by its absolute URI. */
export function linesOfStore(uri: string): string[] {
  const location = parseStoreUri(uri);
  return [location.kind === 's3' ? lineOfStore(location) : lineOfStoreFolder(location.folder)];
}

function withoutUser(uri: string): string {
  const [start, end] = [uri.indexOf('//'), uri.lastIndexOf('@')];
  return start < 0 || end < start ? uri : `${uri.slice(0, start)}//…${uri.slice(end)}`;
}

function parseS3Uri(uri: string): S3Location {
  const match = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/([^?#]*))?(?:\?([^#]*))?$/.exec(uri);
  if (!match) {
    throw new RatchetError(
      'ConfigInvalid',
      `store.uri: expected s3://BUCKET/PREFIX/ with a bucket of 3 to 63 lower-case letters, digits, dots and dashes, and no keys in it (those come from the usual AWS chain), got ${JSON.stringify(showStoreUri(uri))}.`,
    );
  }
  const [, bucket = '', written = '', query = ''] = match;
  const options = new URLSearchParams(query);
  // The value is not quoted: it may be a misplaced secret.
  const unknown = [...options.keys()].find((name) => !s3Options.includes(name));
  if (unknown !== undefined) throw optionInvalid(unknown, `one of ${s3Options.join(', ')}`, 'an unknown option');
  return {
    bucket,
    prefix: written === '' || written.endsWith('/') ? written : `${written}/`,
    endpoint: endpointOf(options.get('endpoint')),
    region: options.get('region'),
    pathStyle: options.get('path_style') === 'true',
    ...encryptionOf(options),
  };
}

function endpointOf(written: string | null): string | null {
  if (written === null) return null;
  if (plainUrl(written) === null) {
    throw optionInvalid('endpoint', 'a URL such as "https://s3.example.com" without a user or password', 'another');
  }
  return written.replace(/\/$/, '');
}

function encryptionOf(options: URLSearchParams): Pick<S3Location, 'sse' | 'kmsKeyId'> {
  const [sse, kmsKeyId] = [options.get('sse'), options.get('kms_key_id')];
  if (sse !== null && sse !== 'AES256' && sse !== 'aws:kms') {
    throw optionInvalid('sse', '"AES256" or "aws:kms"', JSON.stringify(sse));
  }
  if (kmsKeyId !== null && sse !== 'aws:kms') throw optionInvalid('kms_key_id', 'sse = "aws:kms" beside it', 'none');
  return { sse, kmsKeyId };
}

function optionInvalid(name: string, expected: string, received: string): RatchetError {
  return new RatchetError('ConfigInvalid', `store.${name}: expected ${expected}, got ${received}.`);
}

function formatS3Uri({ bucket, prefix, endpoint, region, pathStyle, sse, kmsKeyId }: S3Location): string {
  const options = new URLSearchParams();
  if (endpoint !== null) options.set('endpoint', endpoint);
  if (region !== null) options.set('region', region);
  if (pathStyle) options.set('path_style', 'true');
  if (sse !== null) options.set('sse', sse);
  if (kmsKeyId !== null) options.set('kms_key_id', kmsKeyId);
  return `s3://${bucket}/${prefix}${options.size > 0 ? `?${options.toString()}` : ''}`;
}
