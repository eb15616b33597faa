import type { ResultMetadata } from '../../core/eval/result-metadata.ts';

/** An evaluation that was found, and nothing of its rows read. */
export interface FoundEvaluation {
  readonly environment: string;
  readonly model: string;
  /** Its folder's name: verifiers' eight digits, `step_20`. */
  readonly id: string;
  /** Folder or URI, for people. */
  readonly where: string;
  readonly metadata: ResultMetadata;
  /** Of a run: which version was evaluated, or sampled. */
  readonly step: number | null;
  /** `training`: what was sampled to be trained. */
  readonly of: 'evaluation' | 'training';
  /** The file of its rows on this machine; brought here where it lies elsewhere. */
  readonly rows: () => Promise<string>;
}

/** What was looked through. */
export interface FoundEvaluations<E extends FoundEvaluation = FoundEvaluation> {
  readonly evaluations: readonly E[];
  /** Folders that hold one of the two files that an evaluation has, or one that is no JSON; with what is wrong. */
  readonly incomplete: readonly { readonly where: string; readonly why: string }[];
}

/** `ENV--MODEL`, as the folder of an evaluation is called: a model's `/` is written `--`. */
export function namesFromFolder(folder: string): { environment: string; model: string } {
  const [environment = '', ...model] = folder.split('--');
  return { environment, model: model.join('/') };
}
