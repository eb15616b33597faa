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
      answers: ({ status, code }) =>
        status === 403 || status === 501 ? { value: `HTTP ${status} ${code}` } : undefined,
    });
    if (typeof page === 'string') return page;
    for (const { Key: key, UploadId: id, Initiated } of page.Uploads ?? []) {
      // Some servers take the prefix for the beginning of another.
      if (key === undefined || id === undefined || !key.startsWith(prefix) || !isOld(Initiated)) continue;
      const parts = await partsOf(requests, key, id);
      if (parts.every(({ at }) => isOld(at)))
        found.push({ key: key.slice(prefix.length), id, bytes: parts.reduce((sum, { bytes }) => sum + bytes, 0) });
    }
    const { IsTruncated, NextKeyMarker, NextUploadIdMarker } = page;
    after = IsTruncated ? present({ KeyMarker: NextKeyMarker, UploadIdMarker: NextUploadIdMarker }) : null;
  }
  return found;
}

/** Its parts so far; none where it has been completed or aborted meanwhile. */
async function partsOf(requests: S3Requests, key: string, UploadId: string) {
  const parts: { readonly bytes: number; readonly at: Date | undefined }[] = [];
  for (let after: string | null | undefined; after !== null;) {
    const marker: string | undefined = after;
    const page = await requests.run<ListPartsCommandOutput | null>({
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
      answers: ({ code }) => (code === 'NoSuchUpload' ? { value: null } : undefined),
    });
    for (const { Size = 0, LastModified } of page?.Parts ?? []) parts.push({ bytes: Size, at: LastModified });
    after = page?.IsTruncated ? (page.NextPartNumberMarker ?? null) : null;
  }
  return parts;
}
