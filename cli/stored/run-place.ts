import { RatchetError } from '../../core/errors.ts';
import { isUnreadable } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { runNamePattern } from '../../core/names.ts';
import { openRunStore, resolveStoreUri } from '../../store/index.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';

export const defaultStore = 'file:outputs';
/** A run that has ended is replayed to answer: many seconds on a busy machine. */
const answerWithinMs = 60_000;

/**
 * Folder of a run: below `storeUri`, else below ./outputs, else as the running workflow answers over Temporal, which
 * works on any machine that reaches both.
 */
export async function findRunFolder(
  run: string,
  storeUri: string | undefined,
  { asksTemporal = true }: { readonly asksTemporal?: boolean } = {},
): Promise<{ name: string; store: string }> {
  if (!runNamePattern.test(run)) {
    throw new RatchetError(
      'RunNotFound',
      `${JSON.stringify(run)} is not the name of a run. Expected one such as reverse-text; --store says where the runs are.`,
    );
  }
  const here = resolveStoreUri(storeUri ?? defaultStore, process.cwd());
  if (await holds(here, run)) return { name: run, store: here };
  const said = storeUri === undefined && asksTemporal ? await storeByRun(run) : { store: null, why: null };
  if (said.store !== null && (await holds(said.store, run))) return { name: run, store: said.store };
  const elsewhere =
    said.store === null
      ? (said.why ?? '')
      : ` It says it is in ${openRunStore(said.store, run).uri}, which cannot be read from here.`;
  throw new RatchetError(
    'RunNotFound',
    `There is no run ${run}: ${openRunStore(here, run).uri} holds no run.json.${elsewhere} Say where the runs are with --store URI.`,
  );
}

/** Whether the command named the store that a run was found in, and not the run itself. */
export function isTypedStore({ store }: { readonly store: string }, typed: string | undefined): boolean {
  return store === resolveStoreUri(typed ?? defaultStore, process.cwd());
}

/** A damaged record still counts as a run; reading it later reports the damage. */
async function holds(store: string, run: string): Promise<boolean> {
  try {
    return (await openRunStore(store, run).read(layout.run())) !== null;
  } catch (error) {
    if (isUnreadable(error)) return true;
    throw error;
  }
}

/** The running workflow's answer; asked only when the folder is not here. */
async function storeByRun(run: string): Promise<{ store: string | null; why: string | null }> {
  const [{ findRun }, { withTemporal }] = await Promise.all([
    import('../../workers/temporal/client.ts'),
    import('../temporal/with-temporal.ts'),
  ]);
  try {
    return await withTemporal(async (client) => {
      const handle = await findRun(client, run);
      const status = await client.withDeadline(Date.now() + answerWithinMs, () => handle.query<RunStatus>('status'));
      return { store: status.storeUri, why: null };
    });
  } catch (error) {
    return {
      store: null,
      why: ` The run could not be asked either: ${rootMessage(error)}`,
    };
  }
}

/** `--step 50` as a number. */
export function readStep(text: string): number {
  const step = /^\d+$/.test(text) ? Number(text) : Number.NaN;
  if (Number.isSafeInteger(step)) return step;
  throw new RatchetError(
    'ConfigInvalid',
    `--step: expected a committed step, as in --step 50; got ${JSON.stringify(text)}.`,
  );
}
