import { RatchetError } from '../../../core/errors.ts';
import { present } from '../../../core/present.ts';
import { layout } from '../../../runs/layout.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import type { CheckpointSubject } from '../../../runs/evaluations/checkpoint-evaluations.ts';
import { type RunPlace, storeOf } from '../../../runs/run-access.ts';
import { loadNamedEvaluations } from '../../../load/evaluations/load-evaluations.ts';
import { decodeStored, encodeStored } from '../../../runs/forms/stored-forms.ts';
import { type EvalRunOptions, settingsOf } from '../run-options.ts';

export interface CheckpointOptions extends Pick<
  EvalRunOptions,
  | 'envArgs'
  | 'numExamples'
  | 'rolloutsPerExample'
  | 'maxTokens'
  | 'temperature'
  | 'samplingArgs'
  | 'maxConcurrent'
  | 'store'
  | 'json'
  | 'builtin'
  | 'grant'
> {
  readonly steps?: string;
  readonly evalBase: boolean;
  readonly env?: readonly string[];
  readonly backfill?: boolean;
  readonly watcher?: boolean;
  readonly atOnce?: string;
  readonly dryRun?: boolean;
}

/** Whether this command line has the environments, or the run's folder. */
type AskedSubject = CheckpointSubject & { readonly isTyped: boolean };

/** State of one call, stored for `--backfill`. */
interface Remembered {
  readonly subject: CheckpointSubject;
}

const rememberedKey = `${layout.allEvaluations('main')}checkpoints.json`;

export async function remember(place: RunPlace, asked: AskedSubject): Promise<void> {
  const { isTyped: _, ...subject } = asked;
  await storeOf(place).put(rememberedKey, encodeStored(rememberedKey, { subject } satisfies Remembered));
}

export async function subjectOf(place: RunPlace, options: CheckpointOptions): Promise<AskedSubject> {
  const settings = settingsOf(options);
  const isSaid = options.env !== undefined || Object.keys(settings).length > 0;
  if (options.backfill) {
    if (isSaid)
      throw new RatchetError(
        'ConfigInvalid',
        '--backfill evaluates as last time did: leave --env, -n and the others out, or --backfill.',
      );
    const bytes = await storeOf(place).read(rememberedKey);
    if (bytes) return { ...decodeStored<Remembered>(bytes, rememberedKey).subject, isTyped: false };
  }
  if (options.env !== undefined) {
    return { ...(await plannedSubject(options.env, settings, options)), isTyped: true };
  }
  const { num_examples: n, rollouts_per_example: r, ...rest } = settings;
  const sampling = samplingFields(rest);
  return {
    kind: 'own',
    isTyped: false,
    settings: {
      ...(n === undefined ? {} : { numExamples: Number(n) }),
      ...(r === undefined ? {} : { rolloutsPerExample: Number(r) }),
      ...(sampling === null ? {} : { sampling }),
    },
  };
}

function samplingFields(settings: Record<string, JsonValue>): Record<string, JsonValue> | null {
  const { max_tokens, temperature, sampling = {}, ...others } = settings;
  const foreign = Object.keys(others);
  if (foreign.length > 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `${foreign.join(', ')}: of environments that --env names; without it the run's own [eval] is evaluated.`,
    );
  }
  const fields = {
    ...present({ max_tokens, temperature }),
    ...(sampling as Record<string, JsonValue>),
  };
  return Object.keys(fields).length === 0 ? null : fields;
}

/** Without `--env`, the run's own environments. */
async function plannedSubject(
  environments: readonly string[],
  settings: Record<string, JsonValue>,
  { builtin }: Pick<CheckpointOptions, 'builtin'>,
): Promise<Extract<CheckpointSubject, { kind: 'planned' }>> {
  const ids = environments.map((id) => id.trim()).filter((id) => id !== '');
  const over = { ...settings, model: 'checkpoint', provider: 'local' };
  const loaded = await loadNamedEvaluations(ids, {
    projectFolder: process.cwd(),
    over,
    builtin: builtin === true,
  });
  return { kind: 'planned', evaluations: loaded.evaluations.map(({ input }) => input) };
}
