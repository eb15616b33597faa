import { type CheckpointFigures, checkpointCurves } from '../../core/eval/checkpoint-curve.ts';
import type { EvaluationResult } from '../../core/eval/evaluation.ts';
import { measuredRow, promptOf, rewardRow } from '../../core/eval/measured-row.ts';
import { rewardsByExample } from '../../core/eval/regression.ts';
import type { RolloutRow } from '../../core/rl/rollout/rollout.ts';
import { evaluationKeys } from '../../runs/evaluations/evaluation-store.ts';
import { storeOf } from '../../runs/run-access.ts';
import { decodeRows } from '../../store/objects.ts';
import { checkpointLines } from './checkpoint-table.ts';

export async function checkpointFigures(step: number, result: EvaluationResult): Promise<CheckpointFigures> {
  const { environment, avgReward, passAtK, failed, rollouts, place } = result;
  const key = evaluationKeys.results(place);
  const rows = decodeRows<RolloutRow>((await storeOf(place).read(key)) ?? Buffer.of(), key);
  const measured = rows.filter((row) => measuredRow(row).reward !== null).map(rewardRow);
  const [first] = rows;
  const prompt = first && promptOf(first);
  const rewards = rewardsByExample(measured);
  return { step, environment, prompt, reward: avgReward, passAtK, failed, rollouts, rewards };
}

/** The checkpoints of a run, or of a folder of weights: a table and a curve for each environment. */
export function curveLines(of: string, figures: readonly CheckpointFigures[]): string[] {
  return checkpointLines(checkpointCurves(of, figures));
}
