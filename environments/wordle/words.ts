/** Common English words of five letters, from which secrets are drawn. A guess may be any five letters. */
export const words: readonly string[] = `
  about above actor acute admit adopt adult after again agent agree ahead alarm album alert alike alive allow alone along alter among
  angel anger angle angry apart apple apply arena argue arise armor array arrow aside asset audio avoid award aware bacon badge baker
  basic basin batch beach beard beast began begin being below bench berry birth black blade blame blank blast blaze bleak blend bless
  blind block blood bloom board boast bonus boost booth bound brain brake branch brand brass brave bread break breed brick bride brief
  bring broad broke brook brown brush build built bunch burst buyer cabin cable camel candy canoe cargo carry catch cause cedar chain
  chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir chord civic civil claim class clay clean
  clear clerk click cliff climb cling clock close cloth cloud coach coast color coral couch cough could count court cover craft crane
  crash cream creek crest crime crisp cross crowd crown crude crush curve cycle daily dairy dance dealt debut decay delay delta dense
  depth devil diary dirty disco ditch diver dizzy donor doubt dough dozen draft drain drama drank drawn dream dress dried drift drill
  drink drive drove eager eagle early earth eight elbow elder elect elite empty enemy enjoy enter entry equal error essay event every
  exact exist extra fable faint fairy faith false fancy fatal favor feast fence ferry fetch fever fiber field fifth fight final first
  flame flash fleet flesh float flock flood floor flour fluid flute focus force forge forth forum found frame fresh front frost fruit
  funny ghost giant given glass globe glory glove grace grade grain grand grant grape graph grasp grass grave great green greet grief
  grill grind groan group grove guard guess guest guide habit happy harsh haste haven heart heavy hedge hello honey honor horse hotel
  house human humor hurry ideal image index inner input irony issue ivory jelly jewel joint judge juice knife knock known label labor
  large laser later laugh layer learn lease least leave lemon level lever light limit linen liver local lodge logic loose lorry lower
  loyal lucky lunch magic major maker maple march match maybe mayor medal media melon mercy merge merit metal meter might minor minus
  model money month moral motor mount mouse mouth movie music naval nerve never night noble noise north novel nurse nylon ocean offer
  often olive onion opera orbit order organ other ought outer owner paint panel panic paper party pasta patch pause peace pearl penny
  phase phone photo piano piece pilot pinch pitch pizza place plain plane plant plate plaza poem point polar porch pound power press
  price pride prime print prior prize proof proud prove pulse punch pupil queen quest quick quiet quite quota quote radar radio raise
  rally ranch range rapid ratio reach react ready realm rebel refer relax reply rider ridge rifle right rigid rinse risky rival river
  roast robot rocky rough round route royal rugby ruler rural salad sandy sauce scale scarf scene scent scoop scope score scout screw
  sense serve seven shade shake shall shame shape share shark sharp sheep sheet shelf shell shift shine shirt shock shoot shore short
  shout sight silly since skill skirt sleep slice slide slope small smart smell smile smoke snake solar solid solve sorry sound south
  space spare spark speak speed spell spend spice spike spine split spoke sport spray squad stack staff stage stain stair stake stamp
  stand start state steam steel steep stern stick still sting stock stone stood store storm story stove straw strip stuck study stuff
  style sugar suite sunny super swamp swear sweat sweep sweet swift swing sword table taste teach tempo tenth thank theft theme there
  thick thief thing think third thorn those three throw thumb tiger tight timer title toast today token topic torch total touch tough
  towel tower trace track trade trail train trash treat trend trial tribe trick truck truly trunk trust truth twice twist uncle under
  union unite unity until upper upset urban usage usual valid value valve vapor vault venue verse video virus visit vital vivid vocal
  voice wagon waist waste watch water weary weigh whale wheat wheel where which while white whole widow width woman world worry worth
  would wound wrist write wrong yacht yearn yield young youth zebra
`
  .trim()
  .split(/\s+/)
  .filter((word) => word.length === 5);
