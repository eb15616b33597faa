import { whatIsNoFolder } from '../store/check-file-store.ts';
import { parseStoreUri } from '../store/store-uri.ts';
import { Refused } from './refused.ts';

/** Refuses a store at a place that cannot be a folder: writing there would fail late or hang. */
export async function requireStoreFolder(uri: string): Promise<void> {
  const location = parseStoreUri(uri);
  const found = location.kind === 'file' ? await whatIsNoFolder(location.folder) : null;
  if (found === null) return;
  throw new Refused({
    expected: 'a folder, or a place where one can be made: file:outputs, or s3://BUCKET/PREFIX/',
    received: found,
  });
}
