import { randomUUID } from 'node:crypto';
import { RatchetError } from '../core/errors.ts';
import { deleteObjects } from './s3-download.ts';
import type { S3Requests } from './s3-requests.ts';
import { putObject, type SmallObject } from './s3-upload.ts';

/**
 * Writes a small object below the prefix to check that the server accepts writes and honours If-None-Match and
 * If-Match. A run's commits rest on these: a server that ignores them would acknowledge two writers of one step.
 */
export async function checkS3(requests: S3Requests, prefix: string): Promise<void> {
  const key = `${prefix}.ratchet-check/${randomUUID()}`;
  const put = (content: string, onlyIf: NonNullable<SmallObject['onlyIf']>) =>
    putObject(requests, { key, bytes: Buffer.from(content), metadata: {}, onlyIf });
  try {
    const first = await put('1', { absent: true });
    if (!first) throw refusal(requests, 'If-None-Match: * on a new key', '200', '412');
    if (await put('2', { absent: true }))
      throw refusal(requests, 'If-None-Match: * on a key that exists', '412', '200');
    const other = `"${'0'.repeat(32)}"`;
    if (await put('3', { etag: other }))
      throw refusal(requests, 'If-Match with the ETag of another object', '412', '200');
    if (!(await put('4', { etag: first.etag })))
      throw refusal(requests, 'If-Match with the ETag it gave', '200', '412');
  } catch (error) {
    throw asRefusal(error);
  }
  await deleteObjects(requests, [key]);
}

function refusal(requests: S3Requests, what: string, expected: string, came: string): RatchetError {
  return new RatchetError(
    'Unsupported',
    `${requests.place} does not keep to conditional writes: PutObject with ${what}: expected HTTP ${expected}, came ${came}. ` +
      'Without them two writers could both commit a step. Use a server that has them (AWS S3, MinIO, Ceph, Versity), or file:.',
  );
}

/** Before a run has begun, problems that only a person can fix end it instead of making it wait. */
function asRefusal(error: unknown): unknown {
  if (!(error instanceof RatchetError) || error.code !== 'StoreUnavailable') return error;
  const { name = '', $metadata } = (error.cause ?? {}) as { name?: string; $metadata?: { httpStatusCode?: number } };
  const status = $metadata?.httpStatusCode ?? 0;
  const isRefused = name === 'CredentialsProviderError' || name === 'NoSuchBucket' || status === 401 || status === 403;
  return isRefused ? new RatchetError('ConfigInvalid', error.message, { cause: error.cause }) : error;
}
