/** A mistake that somebody could make, and the tests that must fail for it. */
export interface Defect {
  readonly what: string;
  /** The product file by its name alone: files move. */
  readonly file: string;
  /** Stands once in that file. */
  readonly text: string;
  readonly instead: string;
  /** Test files by their names alone. */
  readonly tests: readonly string[];
  /** Runs only tests whose names match, where a file takes long. */
  readonly only?: string;
}

export const defects: readonly Defect[] = [
  {
    what: 'commit fence: a commit of another trainer is adopted',
    file: 'commit-step.ts',
    text: 'found.parent === parent && found.policy.digest === state.policy.digest && found.plan?.sha256 === plan?.sha256',
    instead: 'found.parent === parent',
    tests: ['steps.test.ts'],
    only: 'a commit with another',
  },
  {
    what: 'commit fence: a step of a lineage that a rewind has left is committed',
    file: 'commit-step.ts',
    text: 'await refuseBehind(run, state.step + 1);',
    instead: 'void refuseBehind;',
    tests: ['steps.test.ts'],
    only: 'a rewind has left',
  },
  {
    what: 'advantage: the deviation is over n, not n − 1',
    file: 'advantage.ts',
    text: 'Math.sqrt((variance * count) / Math.max(1, count - 1))',
    instead: 'Math.sqrt(variance)',
    tests: ['algorithms.test.ts', 'pack.test.ts', 'own-advantage.test.ts'],
  },
  {
    what: 'filter: a group at max_reward counts as too easy',
    file: 'difficulty.ts',
    text: 'mean > filter.maxReward ||',
    instead: 'mean >= filter.maxReward ||',
    tests: ['algorithms.test.ts', 'filters.test.ts', 'selection.test.ts'],
  },
  {
    what: 'pools: a lost group moves its example',
    file: 'pools.ts',
    text: '.filter((group) => group.environment === name && !isLost(group, minGroupSize))',
    instead: '.filter((group) => group.environment === name)',
    tests: ['pools.test.ts'],
  },
  {
    what: 'packing: a rollout without a reward is trained',
    file: 'pack.ts',
    text: 'if (rollout.reward === null) return [];',
    instead: '',
    tests: ['pack.test.ts', 'algorithms.test.ts'],
  },
  {
    what: 'staleness: a group may be one version older than the limit',
    file: 'staleness.ts',
    text: 'return staleness(step, oldestStep) > maxOffPolicySteps;',
    instead: 'return staleness(step, oldestStep) > maxOffPolicySteps + 1;',
    tests: ['collect-step.test.ts', 'algorithms.test.ts', 'window.test.ts', 'stale-share.test.ts'],
  },
  {
    what: 'ledger: an ordinal that is issued twice is not a duplicate',
    file: 'ledger.ts',
    text: 'if (issued.has(ordinal)) duplicates.add(ordinal);\n      else open.add(ordinal);',
    instead: 'open.add(ordinal);',
    tests: ['ledger.test.ts'],
  },
  {
    what: 'KL: the coefficient is not halved below its target',
    file: 'kl-controller.ts',
    text: 'return beta / 2;',
    instead: 'return beta;',
    tests: ['algorithms.test.ts'],
  },
  {
    what: 'sampling: the log probability ignores the temperature',
    file: 'token-choice.ts',
    text: 'logSoftmax(original, scale, tokenId)',
    instead: 'logSoftmax(original, 1, tokenId)',
    tests: ['sampling-choice.test.ts', 'sampler.test.ts'],
  },
  {
    what: 'loss: the ratio of dro has no gradient of its square',
    file: 'loss.ts',
    text: 'return subtract(multiply(klTau, multiply(difference, difference)), multiply(advantages, logprobs));',
    instead: 'return subtract(multiply(klTau, difference), multiply(advantages, logprobs));',
    tests: ['losses.test.ts'],
    only: 'dro',
  },
  {
    what: 'optimizer: the first moment is not corrected for its bias',
    file: 'adamw.ts',
    text: 'learningRate / (1 - beta1 ** step)',
    instead: 'learningRate',
    tests: ['adamw.test.ts'],
  },
  {
    what: 'tool parser: a call that is not closed before the next one counts',
    file: 'tool-readers.ts',
    text: 'if (end < 0 && i < rest.length - 1) return onlyText(text);',
    instead: '',
    tests: ['tool-calls.test.ts'],
    only: 'to the letter',
  },
  {
    what: 'template: tojson ignores the separators it is given',
    file: 'filters.ts',
    text: '[item, key] = pair.map((each) => textOf(each as string)) as [string, string];',
    instead: '',
    tests: ['chat-templates.test.ts', 'hostile-templates.test.ts'],
  },
  {
    what: 'config: a batch of parts of groups is accepted',
    file: 'index.ts',
    text: 'batch_size % rollouts_per_example !== 0 && !hasOwnSizes',
    instead: 'batch_size < rollouts_per_example && !hasOwnSizes',
    tests: ['training-config.test.ts', 'parse-run-config.test.ts'],
  },
  {
    what: 'command line: --no-wandb turns it on',
    file: 'overrides.ts',
    text: "off ? 'false' : 'true'",
    instead: "'true'",
    tests: ['config-line.test.ts'],
  },
  {
    what: 'store: the second of two writers wins',
    file: 'file-store.ts',
    text: 'await link(folder.at(temporary), folder.at(name));\n        await folder.sync();',
    instead: 'await rename(folder.at(temporary), folder.at(name));\n        await folder.sync();',
    tests: ['file-store.test.ts'],
  },
  {
    what: 'durability: a file is not synced before it takes its name',
    file: 'file-store.ts',
    text: 'await handle.sync();',
    instead: '',
    tests: ['file-store.test.ts'],
    only: 'on the disk before',
  },
  {
    what: 's3: an object is written over one that is there',
    file: 's3-upload.ts',
    text: "'absent' in onlyIf ? { IfNoneMatch: '*' }",
    instead: "'absent' in onlyIf ? {}",
    tests: ['s3-store.test.ts'],
    only: 'of twenty writers of one key',
  },
  {
    what: 'durability: a version is settled before its optimizer',
    file: 'settle-version.ts',
    text: 'await staging.settle(pendingAt + path.posix.basename(place), place);',
    instead: '',
    tests: ['settle-version.test.ts'],
  },
  {
    what: 'claims: a run that another workflow drives is taken over',
    file: 'claim-run.ts',
    text: 'if (holder && (await isWorkflowRunning(holder))) {',
    instead: 'if (holder && (await isWorkflowRunning(holder)) && workflowId === holder) {',
    tests: ['open-run.test.ts'],
  },
  {
    what: 'evaluation: pass@k counts draws with replacement',
    file: 'pass-at-k.ts',
    text: '(part - i) / (n - i)',
    instead: 'part / n',
    tests: ['pass-at-k.test.ts'],
  },
  {
    what: 'GEPA: a child that is no better is accepted',
    file: 'acceptance.ts',
    text: "acceptance === 'strict_improvement' ? is > was : is >= was",
    instead: 'is >= was',
    tests: ['gepa-cases.test.ts'],
  },
  {
    what: 'GEPA: dominated candidates stay in the fronts',
    file: 'fronts.ts',
    text: 'if (own.every((front) => front.some((other) => other !== candidate && left.has(other)))) left.delete(candidate);',
    instead: '',
    tests: ['search.test.ts', 'gepa-cases.test.ts', 'scripted-runs.test.ts'],
  },
  {
    what: 'page: a request from another site is answered',
    file: 'doorkeeper.ts',
    text: "!['same-origin', 'none'].includes(site)",
    instead: 'false',
    tests: ['serve.test.ts'],
  },
  {
    what: 'page: a metric keeps the mean of the first rows of a point',
    file: 'metrics-table.ts',
    text: 'const alone = chosen.length > 0 && this.stepOf(chosen[0]!) === 0 ? 1 : 0;',
    instead: 'const alone = 0;',
    tests: ['metrics-table.test.ts'],
  },
  {
    what: 'supervisor: children of a process that died live on beside its successor',
    file: 'supervised-process.ts',
    text: "signalGroup(group, 'SIGKILL');\n      guard.remove(group);",
    instead: 'guard.remove(group);',
    tests: ['supervisor.test.ts'],
    only: 'what a role has started',
  },
  {
    what: 'secrets: a payload is stored as plain text beside a key',
    file: 'payload-codec.ts',
    text: 'return key ? payloads.map((payload) => encrypt(payload, key)) : payloads;',
    instead: 'return key ? payloads : payloads.map((payload) => payload);',
    tests: ['payload-codec.test.ts'],
  },
  {
    what: 'grants: a key is sent to the server that a redirect names',
    file: 'ask-server.ts',
    text: '...(isOwn && server.keys.length > 0 ? secrets?.() : {})',
    instead: '...(server.keys.length > 0 ? secrets?.() : {})',
    tests: ['ask-server.test.ts'],
  },
  {
    what: 'canary: quantized weights are held to the bound of float32',
    file: 'canary.ts',
    text: "if (inference.kind === 'embedded' && inference.quantize !== undefined) return canaryDifferenceMaxQuantized;",
    instead: '',
    tests: ['canary.test.ts'],
  },
];
