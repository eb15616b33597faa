import type { ListMultipartUploadsCommandOutput, ListPartsCommandOutput } from '@aws-sdk/client-s3';
import { present } from '../core/present.ts';
import type { S3Requests } from './s3-requests.ts';
import type { CutOffUpload } from './types.ts';

/**
 * Uploads in parts below a prefix that were begun, and got their last part, longer ago than `olderThanMs`: their parts
 * take space, and no listing shows them. Its writer died; a living one sends a part every few seconds. A text: why the
 * server does not list them.
 */
export async function cutOffUploads(
  requests: S3Requests,
  prefix: string,
  olderThanMs: number,
): Promise<readonly CutOffUpload[] | string> {
  const isOld = (time: Date | undefined): boolean => time !== undefined && Date.now() - time.getTime() > olderThanMs;
  const found: CutOffUpload[] = [];
  for (let after: { readonly KeyMarker?: string; readonly UploadIdMarker?: string } | null = {}; after !== null;) {
    const markers: object = after;
    const page = await requests.run<ListMultipartUploadsCommandOutput | string>({
      operation: 'ListMultipartUploads',
      key: prefix,
      send: ({ client, sdk }) =>
        client.send(
          new sdk.ListMultipartUploadsCommand({ Bucket: requests.location.bucket, Prefix: prefix, ...markers }),
        ),
      answers: whyRefused,
    });
    if (typeof page === 'string') return page;
    for (const { Key: key, UploadId: id, Initiated } of page.Uploads ?? []) {
      // Some servers take the prefix for the beginning of another.
      if (key === undefined || id === undefined || !key.startsWith(prefix) || !isOld(Initiated)) continue;
      const parts = await partsOf(requests, key, id);
      if (typeof parts === 'string') return parts;
      if (parts.every(({ at }) => isOld(at)))
        found.push({ key: key.slice(prefix.length), id, bytes: parts.reduce((sum, { bytes }) => sum + bytes, 0) });
    }
    const { IsTruncated, NextKeyMarker, NextUploadIdMarker } = page;
    after = IsTruncated ? present({ KeyMarker: NextKeyMarker, UploadIdMarker: NextUploadIdMarker }) : null;
  }
  return found;
}

interface UploadedPart {
  readonly bytes: number;
  readonly at: Date | undefined;
}

/** A policy may not allow it, and some servers do not know it. */
function whyRefused({ status, code }: { readonly status: number; readonly code: string }) {
  return status === 403 || status === 501 ? { value: `HTTP ${status} ${code}` } : undefined;
}

/** Its parts so far; none where it has been completed or aborted meanwhile. A text: why the server does not list them. */
async function partsOf(requests: S3Requests, key: string, UploadId: string): Promise<UploadedPart[] | string> {
  const parts: UploadedPart[] = [];
  for (let after: string | null | undefined; after !== null;) {
    const marker: string | undefined = after;
    const page = await requests.run<ListPartsCommandOutput | string | null>({
      operation: 'ListParts',
      key,
      send: ({ client, sdk }) =>
        client.send(
          new sdk.ListPartsCommand({
            Bucket: requests.location.bucket,
            Key: key,
            UploadId,
            ...present({ PartNumberMarker: marker }),
          }),
        ),
      answers: (failure) => (failure.code === 'NoSuchUpload' ? { value: null } : whyRefused(failure)),
    });
    if (typeof page === 'string') return page;
    for (const { Size = 0, LastModified } of page?.Parts ?? []) parts.push({ bytes: Size, at: LastModified });
    after = page?.IsTruncated ? (page.NextPartNumberMarker ?? null) : null;
  }
  return parts;
}
