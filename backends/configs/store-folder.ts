import { whatIsNoFolder } from '../store/check-file-store.ts';
import { parseStoreUri } from '../store/store-uri.ts';
import { Refused } from './refused.ts';

/** Refuses a store where no folder can be: what would be written there would end on the way, or never. */
export async function requireStoreFolder(uri: string): Promise<void> {
  const location = parseStoreUri(uri);
  const found = location.kind === 'file' ? await whatIsNoFolder(location.folder) : null;
  if (found === null) return;
  throw new Refused({
    expected: 'a folder, or a place where one can be made: file:outputs, or s3://BUCKET/PREFIX/',
    received: found,
  });
}
