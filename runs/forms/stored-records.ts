import { layout } from '../layout.ts';
import { damaged, decodeJson, decodeRows, isRecord, type Shape } from '../../store/objects.ts';
import { decodeStored, decodeStoredRows, decodeStoredTexts } from './stored-forms.ts';
import { canaryIn } from '../versions/canary.ts';
import { isMetricsRow } from '../metrics/metrics.ts';
import { claimIn, forkOriginIn, playedPartIn, runRecordIn, specIn, trainerClaimIn } from './record-shapes.ts';
import { sinkStatesIn } from '../metrics/sink-states.ts';
import { specSourceIn } from './spec-source.ts';

/** Actions of `ratchet fsck --repair` on a record that its readers refuse. */
export type Repair =
  /** Moved away; the next reader makes it again. */
  | 'set aside'
  /** Moved away and replaced by an empty claim, since claims are counted. */
  | 'released'
  /** Moved away; its complete rows, and those of the commits, take its place. */
  | 'rows kept'
  /** Moved away, and rebuilt from the other record with the same settings. */
  | 'made again';

/** A kind of record, below a lineage's folder or the run's: what its readers require, and the consequence of damage. */
interface RecordKind {
  readonly keys: RegExp;
  /** Throws `CheckpointDamaged`. */
  readonly read: (bytes: Uint8Array, key: string) => unknown;
  readonly meaning: string;
  readonly repair: Repair;
}

const count = (value: unknown): boolean => Number.isSafeInteger(value);

const attemptShape: Shape = ({ input, examples, attempt }) => ({
  'what is evaluated, on how many examples, in which attempt': isRecord(input) && count(examples) && count(attempt),
});
const summaryShape: Shape = ({ environment, place, examples, attempt }) => ({
  'an environment and a place': typeof environment === 'string' && isRecord(place),
  'how many examples, in which attempt': count(examples) && count(attempt),
});
const metadataShape: Shape = ({ env_id: environment, num_examples: examples }) => ({
  'env_id and num_examples': typeof environment === 'string' && count(examples),
});
const rolloutShape: Shape = ({ example_id: example }) => ({
  'an example_id': count(example) || typeof example === 'string',
});

const kinds: readonly RecordKind[] = [
  {
    keys: /^run\.json$/,
    read: (bytes, key) => [runRecordIn(bytes, key), forkOriginIn(bytes, key)],
    meaning: 'the run does not continue with it: restore the file from a copy',
    repair: 'made again',
  },
  {
    keys: /^specs\/.*\.source\.json$/,
    read: specSourceIn,
    meaning: 'it is not known from which file the run was read: a command that needs it takes --config FILE',
    repair: 'set aside',
  },
  {
    keys: /^specs\/.*\.json$/,
    read: specIn,
    meaning: 'no run continues from commits with these settings: restore the file from a copy',
    repair: 'made again',
  },
  {
    keys: /^claims\/trainer\/epoch_\d+\.json$/,
    read: trainerClaimIn,
    meaning: 'it is not known which GPU worker had the run',
    repair: 'released',
  },
  {
    keys: /^claims\/claim_\d+\.json$/,
    read: claimIn,
    meaning: 'the run is not opened, as nothing says that no workflow drives it',
    repair: 'released',
  },
  {
    keys: /^canaries\/.*\.quarantined\.json$/,
    read: decodeStoredTexts,
    meaning: 'it is not known which servers hold other weights: they are compared again',
    repair: 'set aside',
  },
  {
    keys: /^canaries\/.*\.json$/,
    read: canaryIn,
    meaning: 'what servers answer with this version is not compared',
    repair: 'set aside',
  },
  {
    keys: /^rollouts\/step_\d+\/groups_[^/]+\/chunk_[^/]+_from_\d{1,16}\.json$/,
    read: playedPartIn,
    meaning: 'these groups are described again from the rollouts beside it when the run is opened',
    repair: 'set aside',
  },
  {
    keys: /^metrics\.jsonl$/,
    read: (bytes, key) => {
      for (const [i, row] of decodeRows(bytes, key).entries())
        if (!isMetricsRow(row)) throw damaged(`${key}, line ${i + 1}`, 'expected a step and a lineage, found neither');
    },
    meaning: 'rows that cannot be read are left out; the commits have them, and evaluations theirs',
    repair: 'rows kept',
  },
  {
    keys: /^sinks\/state\.json$/,
    read: sinkStatesIn,
    meaning: 'how far TensorBoard and W&B are is asked of them again',
    repair: 'set aside',
  },
  {
    keys: /^sinks\/order\.jsonl$/,
    read: textRows,
    meaning: 'rows of metrics are numbered anew, and sent again where the numbers differ',
    repair: 'set aside',
  },
  {
    keys: /^evals\/[^/]+\/[^/]+\/results\.jsonl$/,
    read: (bytes, key) => decodeRows(bytes, key, rolloutShape),
    meaning: 'it is written again from the rollouts beside it when the evaluation is opened',
    repair: 'set aside',
  },
  {
    keys: /^evals\/[^/]+\/[^/]+\/metadata\.json$/,
    read: (bytes, key) => decodeJson(bytes, key, metadataShape),
    meaning: 'it is written again when the evaluation is opened',
    repair: 'set aside',
  },
  {
    keys: /^evals\/[^/]+\/[^/]+\/evaluation\/attempt_\d+\.json$/,
    read: (bytes, key) => decodeStored(bytes, key, attemptShape),
    meaning: 'the evaluation is opened anew, and keeps the rollouts it has',
    repair: 'set aside',
  },
  {
    keys: /^evals\/[^/]+\/[^/]+\/evaluation\/summary_\d+\.json$/,
    read: (bytes, key) => decodeStored(bytes, key, summaryShape),
    meaning: 'what came of the evaluation is not known: made again, it is summed up from its rollouts',
    repair: 'set aside',
  },
  {
    keys: /^evals\/[^/]+\/[^/]+\/rollouts\/.*\.jsonl$/,
    read: (bytes, key) => decodeStoredRows(bytes, key),
    meaning: 'these rollouts of the evaluation are sampled again when it is opened',
    repair: 'set aside',
  },
];

/** null for objects that are not found by their key alone. */
export function kindOfRecord(key: string): Omit<RecordKind, 'keys'> | null {
  const within = key.replace(/^lineages\/[^/]+\//, '');
  return kinds.find(({ keys }) => keys.test(within)) ?? null;
}

/** Examined even when not listed: a folder in their place is not an object of the store. */
export const fixedRecords = [layout.run(), layout.metrics(), layout.sinks(), layout.metricsOrder()] as const;

function textRows(bytes: Uint8Array, key: string): void {
  for (const [i, line] of Buffer.from(bytes).toString('utf8').split('\n').entries()) {
    if (line === '') continue;
    let row: unknown = null;
    try {
      row = JSON.parse(line);
    } catch {
      // reported below
    }
    if (typeof row !== 'string') throw damaged(`${key}, line ${i + 1}`, 'expected the key of a row, found none');
  }
}
