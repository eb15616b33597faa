import { present } from '../core/present.ts';
import { createHash } from 'node:crypto';
import type { PutObjectCommandInput } from '@aws-sdk/client-s3';
import { openRegular } from '../host/regular-file.ts';
import { answeredWith, headObject } from './s3-download.ts';
import { inParallel, isAbsence, type S3Requests, type S3Session } from './s3-requests.ts';

/** Content to store, read part by part, so that a large one is never in memory as a whole. */
interface UploadSource {
  readonly bytes: number;
  /** Digest of the whole content, hex. */
  readonly sha256: string;
  readonly part: (start: number, end: number) => Promise<Uint8Array>;
}

/** Metadata of each object: its sha256 to verify reads, its name in the store, and its writer to recognize our own retried write. */
export const metadataNames = {
  sha256: 'ratchet-sha256',
  key: 'ratchet-key',
  writer: 'ratchet-writer',
  log: 'ratchet-log',
} as const;

/** S3's limit on the parts of a multipart upload. */
const partsMax = 10_000;

export function sourceOfBytes(bytes: Uint8Array): UploadSource {
  return {
    bytes: bytes.byteLength,
    sha256: hexSha256(bytes),
    part: async (start, end) => bytes.subarray(start, end),
  };
}

/** Opens a file as a source and closes it afterwards. The file is read twice: for its hash, and for the upload. */
export async function withFileSource<T>(
  file: string,
  within: readonly string[],
  work: (source: UploadSource) => Promise<T>,
): Promise<T> {
  const handle = await openRegular(file, { within });
  try {
    const hash = createHash('sha256');
    for await (const chunk of handle.createReadStream({ autoClose: false, start: 0 })) hash.update(chunk as Buffer);
    const { size } = await handle.stat();
    return await work({
      bytes: size,
      sha256: hash.digest('hex'),
      async part(start, end) {
        const part = Buffer.allocUnsafe(end - start);
        for (let filled = 0; filled < part.byteLength;) {
          const { bytesRead } = await handle.read(part, filled, part.byteLength - filled, start + filled);
          if (bytesRead === 0) throw new Error(`${file} became shorter while it was stored.`);
          filled += bytesRead;
        }
        return part;
      },
    });
  } finally {
    await handle.close();
  }
}

/** Stores an object in one request, or in parts when it is larger than one. Durable when it returns. */
export async function upload(
  requests: S3Requests,
  key: string,
  source: UploadSource,
  named: Readonly<Record<string, string>> = {},
): Promise<void> {
  const metadata = { ...named, [metadataNames.sha256]: source.sha256 };
  if (source.bytes > requests.limits.partBytes) return uploadInParts(requests, key, source, metadata);
  await putObject(requests, { key, bytes: await source.part(0, source.bytes), metadata });
}

export interface SmallObject {
  readonly key: string;
  readonly bytes: Uint8Array;
  readonly metadata: Readonly<Record<string, string>>;
  /** Condition: there is no object, or it has this ETag. */
  readonly onlyIf?: { readonly absent: true } | { readonly etag: string };
}

/** Stores an object in one request. null when its condition was not met. */
export async function putObject(
  requests: S3Requests,
  { key, bytes, metadata, onlyIf }: SmallObject,
): Promise<{ readonly etag: string } | null> {
  const condition = onlyIf === undefined ? {} : 'absent' in onlyIf ? { IfNoneMatch: '*' } : { IfMatch: onlyIf.etag };
  return requests.run<{ readonly etag: string } | null>({
    operation: 'PutObject',
    key,
    async send({ client, sdk }) {
      const { bucket } = requests.location;
      const command = new sdk.PutObjectCommand({
        Bucket: bucket,
        Key: key,
        Body: bytes,
        Metadata: { ...metadata },
        ...condition,
        ...encryption(requests),
      });
      signWith(command, hexSha256(bytes));
      return { etag: answeredWith((await client.send(command)).ETag, 'ETag') };
    },
    // If-Match on a key that is gone is answered with 404.
    answers: ({ status, code }) =>
      onlyIf && (status === 412 || isAbsence({ status, code })) ? { value: null } : undefined,
  });
}

async function uploadInParts(
  requests: S3Requests,
  key: string,
  source: UploadSource,
  metadata: Readonly<Record<string, string>>,
): Promise<void> {
  const { location, limits } = requests;
  const at = { Bucket: location.bucket, Key: key };
  const UploadId = await requests.run({
    operation: 'CreateMultipartUpload',
    key,
    async send({ client, sdk }) {
      const command = new sdk.CreateMultipartUploadCommand({
        ...at,
        Metadata: { ...metadata },
        ...encryption(requests),
      });
      return answeredWith((await client.send(command)).UploadId, 'UploadId');
    },
  });
  try {
    const size = Math.max(limits.partBytes, Math.ceil(source.bytes / partsMax));
    const starts = Array.from({ length: Math.ceil(source.bytes / size) }, (_, i) => i * size);
    const etags: string[] = [];
    await inParallel(starts, limits.partsAtOnce, async (start, index) => {
      const bytes = await source.part(start, Math.min(start + size, source.bytes));
      const digest = hexSha256(bytes);
      etags[index] = await requests.run({
        operation: `UploadPart ${index + 1} of ${starts.length}`,
        key,
        async send({ client, sdk }) {
          const command = new sdk.UploadPartCommand({ ...at, UploadId, PartNumber: index + 1, Body: bytes });
          signWith(command, digest);
          return answeredWith((await client.send(command)).ETag, 'ETag');
        },
      });
    });
    await complete(requests, key, UploadId, etags, source.sha256);
  } catch (error) {
    await abort(requests, key, UploadId).catch((cause: unknown) => {
      process.stderr.write(
        `the parts of ${key} stay in ${requests.place} until a lifecycle rule ends them: ${String(cause)}\n`,
      );
    });
    throw error;
  }
}

async function complete(
  requests: S3Requests,
  key: string,
  UploadId: string,
  etags: readonly string[],
  sha256: string,
): Promise<void> {
  const isDone = await requests.run<boolean>({
    operation: 'CompleteMultipartUpload',
    key,
    async send({ client, sdk }) {
      const Parts = etags.map((ETag, index) => ({ ETag, PartNumber: index + 1 }));
      const input = { Bucket: requests.location.bucket, Key: key, UploadId, MultipartUpload: { Parts } };
      answeredWith((await client.send(new sdk.CompleteMultipartUploadCommand(input))).ETag, 'ETag');
      return true;
    },
    // The answer to a successful attempt may have been lost; then the object exists.
    answers: ({ code }) => (code === 'NoSuchUpload' ? { value: false } : undefined),
  });
  if (isDone) return;
  const found = await headObject(requests, key);
  if (found?.metadata[metadataNames.sha256] !== sha256) {
    throw new Error(`The multipart upload of ${key} to ${requests.place} was ended by someone else.`);
  }
}

export async function abort(requests: S3Requests, key: string, UploadId: string): Promise<void> {
  await requests.run<void>({
    operation: 'AbortMultipartUpload',
    key,
    async send({ client, sdk }) {
      await client.send(new sdk.AbortMultipartUploadCommand({ Bucket: requests.location.bucket, Key: key, UploadId }));
    },
    answers: ({ code }) => (code === 'NoSuchUpload' ? { value: undefined } : undefined),
  });
}

function encryption({ location: { sse, kmsKeyId } }: S3Requests) {
  return present({
    ServerSideEncryption: sse ?? undefined,
    SSEKMSKeyId: kmsKeyId ?? undefined,
  }) satisfies Partial<PutObjectCommandInput>;
}

type Signed = InstanceType<S3Session['sdk']['PutObjectCommand'] | S3Session['sdk']['UploadPartCommand']>;

/**
 * A body's hash is part of its request's signature. Passed here, the SDK need not compute it again, and servers refuse
 * other bytes.
 */
function signWith(command: Signed, sha256: string): void {
  type Next = (args: { request: unknown }) => Promise<unknown>;
  const stack = command.middlewareStack as unknown as {
    add(middleware: (next: Next) => Next, options: { step: 'build'; name: string }): void;
  };
  const middleware = (next: Next) => (args: { request: unknown }) => {
    (args.request as { headers: Record<string, string> }).headers['x-amz-content-sha256'] = sha256;
    return next(args);
  };
  stack.add(middleware, { step: 'build', name: 'ratchetBodyHash' });
}

function hexSha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
