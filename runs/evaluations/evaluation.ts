import type { ResultMetadata } from '../../core/eval/result-metadata.ts';

/** An evaluation that was found, without its rows. */
export interface FoundEvaluation {
  readonly environment: string;
  readonly model: string;
  /** Its folder's name: verifiers' eight digits, `step_20`. */
  readonly id: string;
  /** Folder or URI, to show to people. */
  readonly where: string;
  readonly metadata: ResultMetadata;
  /** Version of the run that was evaluated, or sampled from. */
  readonly step: number | null;
  /** `training`: the rollouts sampled for training. */
  readonly of: 'evaluation' | 'training';
  /** Path of the file with its rows on this machine, copied here first if needed. */
  readonly rows: () => Promise<string>;
}

export interface FoundEvaluations<E extends FoundEvaluation = FoundEvaluation> {
  readonly evaluations: readonly E[];
  /** Folders with only one of an evaluation's two files, or with invalid JSON, and the problem. */
  readonly incomplete: readonly { readonly where: string; readonly why: string }[];
}

/** `ENV--MODEL`, as the folder of an evaluation is called: a model's `/` is written `--`. */
export function namesFromFolder(folder: string): { environment: string; model: string } {
  const [environment = '', ...model] = folder.split('--');
  return { environment, model: model.join('/') };
}
