import type { Client } from '@temporalio/client';
import type { EvaluationInput, EvaluationsInput } from '../../core/eval/evaluation.ts';
import { differencesOf } from '../../core/eval/same-evaluation.ts';
import { readBeginning } from '../../workers/stack/take-over.ts';

type Input = EvaluationInput | EvaluationsInput;

/** Differences of a running evaluation from this input; empty if it is the same. */
export async function otherThanAsked(client: Client, workflowId: string, now: Input): Promise<string[]> {
  const { runId } = await client.workflow.getHandle(workflowId).describe();
  const { input } = await readBeginning<unknown>(client, workflowId, runId);
  return differencesOfInputs(input, now);
}

export function differencesOfInputs(before: unknown, now: Input): string[] {
  const [was, is] = [inputsIn(before), inputsIn(now)];
  if (was.length !== is.length || was.some((each, i) => titleOf(each) !== titleOf(is[i]!))) {
    return [`what is evaluated was ${was.map(titleOf).join(', ') || 'a file'}, is ${is.map(titleOf).join(', ')}`];
  }
  return is.flatMap((each, i) => {
    const [one, other] = [was[i]!, each];
    const lines = differencesOf(one, other, { before: 0, now: 0 });
    if (one.numExamples !== other.numExamples)
      lines.push(`num_examples was ${one.numExamples}, is ${other.numExamples}`);
    return is.length === 1 ? lines : lines.map((line) => `${titleOf(each)}: ${line}`);
  });
}

function inputsIn(input: unknown): readonly EvaluationInput[] {
  if (typeof input !== 'object' || input === null || 'config' in input) return [];
  return 'inputs' in input ? (input as EvaluationsInput).inputs : [input as EvaluationInput];
}

function titleOf({ environment, model }: EvaluationInput): string {
  const version = model.kind === 'version' ? ` v${model.policy.step}` : '';
  return `${environment.name} · ${model.model}${version}`;
}
