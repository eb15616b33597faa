import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { RatchetError } from '../../core/errors.ts';
import { runNamePattern } from '../../core/names.ts';
import { FileStore } from './file-store.ts';
import type { Store } from './types.ts';

export type { Store } from './types.ts';

/** The store of one run. `uri` is the folder that holds all runs, absolute; the run's own folder lies in it. */
export function openRunStore(uri: string, run: string): Store {
  if (!runNamePattern.test(run)) {
    throw new RatchetError(
      'ConfigInvalid',
      `${JSON.stringify(run)} is no name of a run: expected up to 64 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit.`,
    );
  }
  return new FileStore(path.join(rootFolder(uri), run));
}

/** A store's URI made absolute: `file:outputs` and bare paths are relative to the project's folder. */
export function resolveStoreUri(uri: string, projectFolder: string): string {
  if (uri.startsWith('file:///')) return uri.endsWith('/') ? uri : `${uri}/`;
  const scheme = /^([a-z][a-z0-9+.-]*):/.exec(uri)?.[1];
  if (scheme && scheme !== 'file') {
    throw new RatchetError(
      'ConfigInvalid',
      `store.uri: expected file:FOLDER, got ${JSON.stringify(uri)}. Other stores are not supported yet.`,
    );
  }
  return pathToFileURL(path.resolve(projectFolder, uri.replace(/^file:/, '')) + path.sep).href;
}

function rootFolder(uri: string): string {
  return fileURLToPath(uri);
}
