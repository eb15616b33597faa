import { RatchetError } from '../../core/errors.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import { Packer } from '../../core/rl/learning/pack.ts';
import type { KeptGroups, PolicyVersion, RunHandle } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { servedPolicy } from '../../runs/run-access.ts';
import { GroupsInOrder } from '../../runs/rollouts/scored-groups.ts';
import { type OpenTokenizer, policyTokenizer } from '../policy/policy-tokenizer.ts';
import type { Inference } from '../../backends/inference/index.ts';
import type { Scorer } from './teacher.ts';

interface SelfTaught {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  /** The newest version that the servers hold: it scores. */
  readonly policy: PolicyVersion;
  /** Groups of the batch, in the order they were packed. */
  readonly trained: readonly KeptGroups[];
}

/**
 * The policy as its own teacher (self-distillation, arXiv:2601.19897; prime-rl's `opsd`, orchestrator/algo/opsd.py):
 * scores each sampled row after a system message with the demonstration of its example.
 */
export async function openSelfScorer(
  dependencies: { readonly inference: (spec: RunSpec) => Inference; readonly tokenizer: OpenTokenizer },
  { run, spec, policy, trained }: SelfTaught,
): Promise<Scorer> {
  const { key, template } = spec.teacher!.demonstration!;
  const served = await servedPolicy(run, policy);
  const inference = dependencies.inference(spec);
  const tokenizer = await policyTokenizer(run, spec, { folder: served.folder, open: dependencies.tokenizer });
  const before: number[][] = [];
  const packer = new Packer({ ...spec, advantage: 'centered' });
  const sources = trained.map(({ scored, ordinals }) => ({ ref: scored, ordinals: decodeRanges(ordinals) }));
  for await (const { group, isWanted } of new GroupsInOrder(run, sources, [])) {
    if (!isWanted) continue;
    const { rows } = packer.pack(group);
    if (rows.length === 0) continue;
    const content = template.replaceAll('{demonstration}', () => group.demonstration ?? '');
    const hint = tokenizer.encode(
      tokenizer.renderChatText([{ role: 'system', content }], { addGenerationPrompt: false }),
    );
    if (hint.length === 0) throw untold();
    for (let row = 0; row < rows.length; row++) before.push(hint);
  }
  return {
    name: `${served.name}, told its "${key}"`,
    before,
    score(prompts, signal) {
      if (inference.promptLogprobs) return inference.promptLogprobs({ policy: served, prompts, signal });
      throw new RatchetError(
        'Unsupported',
        'This inference cannot score what the policy said, which [teacher] demonstration asks for.',
      );
    },
  };
}

function untold(): RatchetError {
  return new RatchetError(
    'Unsupported',
    'The chat template of the policy leaves out a system message without anything after it, so the policy cannot be told the [teacher] demonstration; take a model whose template writes system messages, or name one in [tokenizer] chat_template.',
  );
}
