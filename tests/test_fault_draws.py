"""Random faults in company: no right file is changed, no verdict is green on damage, no two verbs contradict."""

import pytest

from tests.sampling import sample
from tests.support.fault_draws import FAULTS, Draw, drawn, judged
from tests.support.repair_draws import REPAIRS, RepairDraw, repair_drawn, repairs_judged

# What went wrong once, each shrunk to its smallest.
PAST = (
    "b551-cqdouble rename-segment:871745 zero-index-page:802886",
    "b514-timer cut-segment:847257",
    "b498-crash-before bit-checkpoint:75554 cut-checkpoint:997440 zero-newest:841401",
    "b420-expired unit-bit:358858",
    "b498-cqext delete-index:821872 bit-unique-key:870163",
    "b420-expired foreign-segment:267459 swap-index:123646",
    "b498-crash-before bit-keys:876084",
    "b514-timer cut-checkpoint:162500",
    "b551-types-crc zero-page:561913 cut-segment:98702",
    "b498-crash-before bit-queue-offset:941933",
    "b420-direct bit-topic:689654",
    "b514-timer bit-topic:193203",
    "b533-crash-before foreign-segment:696588 foreign-index:216356 lengthen-queue:799024",
    "b498-cqext zero-newest:82346 lengthen-queue:691445",
    "b470-base swap-index:793417 bit-unique-key:208948",
    "b514-timer break-positions:471924",
    "b498-crash-before unit-high-bit:489830 foreign-index:50877",
    "b514-expired foreign-segment:805643 bit-body:350957",
    "b470-crash-after foreign-segment:447873",
    "b498-types lengthen-segment:284972",
    "b551-crash-later foreign-segment:49601",
    "b533-crash-before foreign-checkpoint:617700",
    "b420-expired cut-queue:146668",
    "b514-timer lengthen-queue:572629 lengthen-queue:499924",
    "b514-expired cut-index:504989",
    "b533-types-crc lose-property-crc:385262",
    "b533-types-crc bit-queue-offset:246361",
    "b514-timer bit-tags:80625 delete-queue:622747",
    "b533-types-crc zero-newest:269840",
    "b514-timer foreign-segment:259514",
    "b533-crash-before bit-unique-key:549729",
    "b498-cqext bit-keys:444149",
    "b420-direct foreign-queue:824837",
    "b514-timer foreign-queue:111441",
    "b514-expired foreign-index:984456",
    "b514-expired bit-properties:716289",
    "b551-crash-later bit-tags:489108",
    "b533-types-crc foreign-segment:453898",
    "b533-types-crc foreign-segment:279608",
    "b533-crash-before foreign-queue:798853",
    "b551-types-crc lose-property-crc:262393",
    "b533-types-crc cut-segment:749882 lengthen-segment:879991",
    "b533-crash-before cut-segment:506575",
    "b533-crash-before bit-unique-key:527847 delete-queue:185411",
    "b470-crash-after swap-index:815883",
    "b533-crash-before bit-topic:122031 swap-queues:341971",
    "b420-expired bit-properties:878058 delete-index:473505",
    "b514-expired foreign-queue:266327",
    "b498-crash-before bit-checkpoint:34876 cut-checkpoint:317438",
    "b551-cqdouble lengthen-segment:39028 rename-segment:972857",
    "b498-crash-before delete-segment:254006",
    "b533-crash-before foreign-segment:414402",
    "b514-timer delete-segment:272246",
    "b420-direct bit-queue-offset:95770",
    "b420-direct unit-bit:595064",
    "b514-timer unit-bit:940462",
    "b533-base foreign-segment:355807",
    "b470-crash-after delete-index:246506",
    "b498-crash-before zero-page:33606",
    "b533-base bit-keys:841970",
    "b498-crash-before cut-checkpoint:855067 zero-newest:252302",
    "b533-types-crc zero-properties:373431 bit-topic:762220",
    "b533-crash-before foreign-queue:28550 bit-tags:578848",
    "b470-base bit-topic:49679",
    "b498-cqext delete-segment:584007 lengthen-segment:919372",
    "b551-cqdouble cut-segment:901159 bit-head:207018",
    "b470-crash-after foreign-segment:339619",
    "b533-crash-before delete-segment:748397",
    "b498-types bit-tags:462420 swap-queues:894623",
    "b551-crash-later rename-index:239874",
    "b420-direct break-off-index:984769",
    "b514-timer random-newest:579715 abort:1",
    "b498-cqext index-bit:463799",
    "b498-crash-before zero-index-page:993918",
    "b498-types foreign-segment:369054",
    "b551-cqdouble swap-segments:812843 swap-segments:480722",
    "b514-expired unit-bit:780167",
    "b514-timer random-tail:911044 bit-topic:467738",
    "b551-crash-later break-off-segment:885768 delete-index:4756",
    "b514-expired random-tail:680429 random-newest:683404",
    "b514-expired index-bit:229094",
    "b514-expired index-bit:229095",
    "b514-expired index-bit:229096",
    "b551-types-crc foreign-index:388398 delete-segment:256058",
    "b533-crash-before bit-queue-id:127636",
    "b551-crash-later bit-tags:225764 older-queue:736549",
    "b498-cqext bit-queue-id:185361 bit-topic:60151",
    "b514-timer delete-segment:379369 abort:504036",
    "b470-crash-after bit-properties:886817 cut-queue:999686",
    "b533-types-crc lengthen-queue:65385",
    "b498-crash-before rename-segment:455371",
    "b533-crash-before foreign-segment:350083",
    "b498-crash-before foreign-segment:556244",
    "b533-crash-before swap-segments:226510 random-tail:212309",
    "b551-crash-later abort:754442 rename-queue:30502",
    "b551-cqdouble bit-tags:767922 older-queue:317715",
    "b498-crash-before bit-body:409088",
    "b551-cqdouble lengthen-segment:866057 lengthen-segment:232112",
    "b533-types-crc zero-index-page:928970 bit-properties:8117",
    "b533-types bit-properties:1713 zero-index-page:0",
    "b420-expired unit-bit:728230",
    "b533-crash-before rename-queue:847759 zero-page:991006",
    "b533-types-crc foreign-index:690364 cut-checkpoint:692952",
    "b551-cqdouble cut-segment:795833 cut-segment:658208",
    "b420-expired cut-segment:125360 zero-page:413100",
    "b533-crash-before bit-queue-offset:978718",
    "b514-timer break-off-segment:765263 break-off-queue:344913",
    "b470-crash-after rename-index:818493 swap-index:964985",
    "b498-cqext copy-index:209763",
    "b551-types-crc delete-indexes:841235",
    "b551-types-crc delete-queues:969105",
    "b498-crash-before delete-queues:930268",
)
PAST_REPAIRS = (
    "- b533-types-crc cut-queue:32399 bit-body:656520",
    "accept,bridge b498-cqext bit-queue-id:602580",
    "lake b498-types zero-properties:15",
    "bridge,lake b533-types-crc foreign-segment:786320",
    "accept,lake b420-expired cut-queue:262578",
    "lake b498-crash-before bit-body:409088",
    "bridge b533-types-crc zero-page:759028",
    "accept,bridge b514-timer bit-queue-offset:348990 bit-queue-id:723473",
    "accept,bridge,lake b551-types-crc foreign-segment:285805",
    "accept,lake b498-types foreign-segment:872934",
    "lake b498-crash-before zero-properties:935466 foreign-checkpoint:648178",
)
_OFTEN = sample(PAST, 32)
_PARTS = 5
SEEDS = range(33)
REPAIR_SEEDS = range(500_000, 500_006)


@pytest.mark.parametrize("line", sorted(_OFTEN))
def test_what_went_wrong_once_stays_right(line: str) -> None:
    assert judged(Draw.parsed(line)) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_all_else_that_went_wrong_once_stays_right(part: int) -> None:
    others = [line for line in PAST if line not in _OFTEN]
    broken = {line: judged(Draw.parsed(line)) for line in others[part::_PARTS]}

    assert {line: violations for line, violations in broken.items() if violations} == {}


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_draws_break_no_rule(seed: int) -> None:
    _check(FAULTS.failure(drawn(seed)))


@pytest.mark.campaign
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("most", range(1, 5))
def test_thousands_of_draws_break_no_rule(most: int) -> None:
    for seed in range(1000 * most, 1000 * most + 2000):
        _check(FAULTS.failure(drawn(seed, most)))


@pytest.mark.parametrize("line", PAST_REPAIRS)
def test_a_repair_that_went_wrong_once_stays_right(line: str) -> None:
    assert repairs_judged(RepairDraw.parsed(line)) == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", REPAIR_SEEDS)
def test_repairs_with_lake_bridges_and_choices_break_no_rule(seed: int) -> None:
    _check(REPAIRS.failure(repair_drawn(seed, 4)))


@pytest.mark.campaign
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("most", range(1, 5))
def test_hundreds_of_repairs_break_no_rule(most: int) -> None:
    for seed in range(500_000 + 10_000 * most, 500_500 + 10_000 * most):
        _check(REPAIRS.failure(repair_drawn(seed, most)))


def _check(failure: str | None) -> None:
    if failure:
        pytest.fail(failure, pytrace=False)
