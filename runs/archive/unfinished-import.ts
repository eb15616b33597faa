import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import { refuseUnfinishedFork } from '../lineages/unfinished-fork.ts';
import { type RunPlace, storeOf } from '../run-access.ts';

/** Throws where an import was interrupted: a run that trains there would take parts of another's for its own. */
export async function refuseUnfinishedImport(run: RunPlace): Promise<void> {
  const store = storeOf(run);
  const begun = await store.read(layout.unfinishedImport());
  if (begun === null) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${store.uri} has a part of an archive, whose import was interrupted (its digest: ${Buffer.from(begun).toString('utf8').slice(0, 12)}…). The same command finishes it: npx ratchet-rl import FILE. Or remove that folder.`,
  );
}

/** Throws where a fork or an import was interrupted. */
export async function refuseUnfinished(run: RunPlace): Promise<void> {
  await refuseUnfinishedImport(run);
  await refuseUnfinishedFork(run);
}
